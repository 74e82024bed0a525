"""Gymnast's ids in Gymnasium's registry: `gymnasium.make` knows them after `import gymnast`.

`import gymnast` does not import Gymnasium, which would take longer than all the rest: the ids are
registered when Gymnasium is imported, or at once if it already is.
"""

from typing import Any

from gymnast.imports import when_imported

ENVIRONMENTS = {
    "gymnast/Arithmetic-v0": "gymnast.envs.builtin.arithmetic:Arithmetic",
    "gymnast/Code-v0": "gymnast.envs.builtin.code.environment:Code",
    "gymnast/Container-v0": "gymnast.envs.builtin.container:Container",
    "gymnast/Harbor-v0": "gymnast.envs.builtin.harbor.environment:Harbor",
    "gymnast/Program-v0": "gymnast.envs.programs.environment:Program",
    "gymnast/HarborProgram-v0": "gymnast.envs.builtin.harbor.program:HarborProgram",
    "gymnast/Python-v0": "gymnast.envs.builtin.python:Python",
    "gymnast/SQL-v0": "gymnast.envs.builtin.sql.environment:SQL",
    "gymnast/Search-v0": "gymnast.envs.builtin.search.environment:Search",
    "gymnast/Shell-v0": "gymnast.envs.builtin.shell:Shell",
}


def register_ids() -> None:
    """Register the environments, now or when Gymnasium is imported."""
    when_imported("gymnasium.envs.registration", _register)


def _register(registration: Any) -> None:
    for id, entry_point in ENVIRONMENTS.items():
        if id not in registration.registry:
            registration.register(id=id, entry_point=entry_point, disable_env_checker=True)
