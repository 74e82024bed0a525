"""Modules of Gymnast as a program that defines them in a process that has no Gymnast.

A box has Python and nothing else, so what runs there is sent as source text.
"""

from collections.abc import Iterable
from pathlib import Path

# Runs in the box, under any Python from 3.8 on. The package is an empty module that exists so that
# the modules can import each other by their full names; its own parents are not needed for that.
DEFINE_MODULES = """
def _define_modules(package, sources):
    import sys, types
    parent = sys.modules[package] = types.ModuleType(package)
    for name, source in sources:
        module = types.ModuleType(package + "." + name)
        sys.modules[module.__name__] = module
        setattr(parent, name, module)
        exec(compile(source, module.__name__, "exec", dont_inherit=True), vars(module))
    return module
"""


def module_sources(folder: Path, names: Iterable[str]) -> list[tuple[str, str]]:
    """The name and the source of each module, as `_define_modules` takes them.

    Args:
        folder: Where the files are.
        names: The modules without ".py", each after those that it imports.
    """
    return [(name, (folder / f"{name}.py").read_text("utf-8")) for name in names]


def module_program(package: str, sources: list[tuple[str, str]]) -> str:
    """Python that defines modules and leaves one name behind, that of the last module.

    Args:
        package: The package that the modules import each other from.
        sources: See `module_sources`.
    """
    last = sources[-1][0]
    call = f"{last} = _define_modules({package!r}, {sources!r})\n"
    return f"{DEFINE_MODULES}{call}del _define_modules\n"
