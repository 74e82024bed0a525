"""Who may import whom: every room, and the rooms that it knows.

A room is a folder. `gymnast.envs` and its like, the folders that hold rooms, are rooms as well:
what lies in them imports the rooms below, and their `__init__.py` is what users import.
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("gymnast", "sandboxes", "envs", "agents", "trainers")

# Modules of `gymnast` itself that every room may import. They import nothing but each other.
BOTTOM = {
    "chat_client",
    "chat_protocol",
    "cores",
    "errors",
    "imports",
    "lookup",
    "numbers",
    "shared_threads",
    "threads",
    "types",
    "visible",
}

# From the bottom up: a room, and what it imports beside its own modules.
ROOMS = {
    "sandboxes.contract": "",
    "sandboxes.seccomp": "",
    "sandboxes.guest": "",
    "sandboxes.lifetime": "sandboxes.guest",
    "sandboxes.worker": "sandboxes.contract sandboxes.guest sandboxes.lifetime",
    "sandboxes.host": (
        "sandboxes.contract sandboxes.guest sandboxes.lifetime sandboxes.seccomp sandboxes.worker"
    ),
    "sandboxes.docker": (
        "sandboxes.contract sandboxes.host sandboxes.lifetime sandboxes.seccomp sandboxes.worker"
    ),
    "sandboxes.backends": (
        "sandboxes.contract sandboxes.docker sandboxes.host sandboxes.lifetime"
    ),
    "sandboxes.pool": "sandboxes.backends sandboxes.contract sandboxes.lifetime",
    "envs.records": "",
    "envs.tools": "envs.records",
    "envs.rendering.calls": "envs.records",
    "envs.rendering.dialects": "envs.rendering.calls",
    "envs.rendering.tokens": "envs.rendering.calls",
    "envs.rendering.template": (
        "envs.rendering.calls envs.rendering.dialects envs.rendering.tokens"
    ),
    "envs.rendering": (
        "envs.records envs.rendering.calls envs.rendering.dialects envs.rendering.template "
        "envs.rendering.tokens"
    ),
    "envs.boxes": "sandboxes.backends sandboxes.contract sandboxes.pool",
    "envs.environment.tokens": "envs.records envs.rendering",
    "envs.environment": (
        "envs.boxes envs.environment.tokens envs.records envs.rendering envs.tools "
        "sandboxes.contract"
    ),
    "envs": (
        "envs.environment envs.environment.tokens envs.records envs.rendering envs.tools "
        "sandboxes.contract"
    ),
    "envs.rubrics": "envs.boxes envs.builtin.code envs.records envs.tools sandboxes.contract",
    "envs.checking": "envs envs.environment envs.environment.tokens envs.records envs.tools",
    "envs.builtin": (
        "envs.boxes envs.environment envs.environment.tokens envs.records envs.tools "
        "sandboxes.contract"
    ),
    "envs.adapters": "envs.environment envs.records envs.tools",
    "envs.adapters.mcp": (
        "envs.adapters envs.environment envs.records envs.tools sandboxes.contract"
    ),
    "envs.builtin.search": "envs.environment envs.records envs.rubrics envs.tools",
    "envs.adapters.openenv": "envs.adapters envs.environment envs.records envs.tools",
    "envs.adapters.trl": (
        "envs.adapters envs.environment envs.records envs.rendering envs.tools"
    ),
    "envs.builtin.sql": (
        "envs.environment envs.records envs.rubrics envs.tools sandboxes.lifetime"
    ),
    "envs.builtin.code.judging": "",
    "envs.builtin.harbor": (
        "envs.boxes envs.environment envs.programs envs.records envs.tools sandboxes.contract "
        "sandboxes.docker"
    ),
    "envs.builtin.code": (
        "envs.boxes envs.builtin.code.judging envs.environment envs.records envs.tools "
        "sandboxes.contract"
    ),
    "envs.programs.dialects": "",
    "envs.programs.dialects.responses": "envs.programs.dialects",
    "envs.programs.serving": "envs.programs.dialects envs.programs.dialects.responses",
    "envs.programs": (
        "envs.environment envs.programs.dialects envs.programs.serving envs.records "
        "envs.rendering sandboxes.contract sandboxes.host sandboxes.lifetime"
    ),
    "agents.models": "",
    "agents.loading": "agents.models",
    "agents.caches": "agents.models",
    "agents.engine": "agents.caches agents.models",
    "agents.vllm": "agents.loading agents.models",
    "agents.vllm.weights": "agents.loading agents.models agents.vllm",
    "agents": (
        "agents.caches agents.engine agents.loading agents.models agents.vllm agents.vllm.weights"
    ),
    "trainers.base": "",
    "trainers.data": "envs envs.environment envs.tools trainers.base",
    "trainers.algorithms": "trainers.base",
    "trainers.distributed": "",
    "trainers.rollouts": (
        "agents envs envs.boxes envs.environment envs.rubrics trainers.base "
        "trainers.conversations trainers.data trainers.distributed trainers.rollouts.recording"
    ),
    "trainers.rollouts.recording": "envs trainers.base",
    "trainers.cluster": (
        "agents envs sandboxes.pool trainers.base trainers.conversations trainers.rollouts"
    ),
    "trainers.conversations": "agents envs envs.environment trainers.base",
    "trainers.ahead": (
        "agents trainers.algorithms trainers.base trainers.data trainers.distributed "
        "trainers.rollouts"
    ),
    "trainers.learner.tree_attention": "agents.models",
    "trainers.learner.policy": (
        "agents.models trainers.algorithms trainers.base trainers.learner.tree_attention"
    ),
    "trainers.learner.optimizers": "trainers.distributed trainers.learner.policy",
    "trainers.learner.memory": "agents.models trainers.learner.policy",
    "trainers.learner": (
        "agents.models trainers.algorithms trainers.base trainers.data trainers.distributed "
        "trainers.learner.memory "
        "trainers.learner.optimizers trainers.learner.policy"
    ),
    "trainers.records": "",
    "trainers.demonstrations": (
        "envs envs.environment envs.records envs.tools trainers.base trainers.conversations "
        "trainers.data trainers.distributed trainers.learner trainers.records trainers.saving"
    ),
    "trainers.saving": (
        "agents.loading agents.models trainers.base trainers.distributed "
        "trainers.learner.memory trainers.learner.optimizers trainers.records"
    ),
    "trainers.evaluation": "trainers.base trainers.rollouts",
    "trainers.inspecting": (
        "envs.records trainers.records trainers.reporting trainers.reporting.advice "
        "trainers.saving"
    ),
    "trainers.replaying": (
        "agents.loading envs trainers.config trainers.conversations trainers.data "
        "trainers.inspecting trainers.records trainers.reporting trainers.rollouts trainers.saving"
    ),
    "trainers.rescoring": (
        "trainers.base trainers.inspecting trainers.rollouts trainers.saving"
    ),
    "trainers.reporting.live": "",
    "trainers.reporting": (
        "envs.boxes trainers.base trainers.distributed trainers.evaluation "
        "trainers.reporting.live"
    ),
    "trainers.reporting.advice": (
        "envs trainers.base trainers.evaluation trainers.learner trainers.reporting"
    ),
    "trainers.config": (
        "agents.models envs envs.environment trainers.ahead trainers.algorithms trainers.base "
        "trainers.cluster "
        "trainers.conversations trainers.data trainers.demonstrations "
        "trainers.evaluation trainers.learner trainers.reporting trainers.rollouts trainers.saving"
    ),
    "trainers.provenance": "trainers.base trainers.config trainers.data trainers.saving",
    "trainers.exporting": "trainers.base trainers.config trainers.provenance trainers.saving",
    "trainers.dry_runs": (
        "envs envs.environment trainers.base trainers.conversations trainers.data "
        "trainers.inspecting trainers.records trainers.reporting trainers.reporting.advice "
        "trainers.reporting.live trainers.rollouts"
    ),
    "trainers.schema": (
        "agents envs sandboxes.backends trainers.algorithms trainers.base trainers.config "
        "trainers.learner.optimizers trainers.reporting trainers.rollouts"
    ),
    "trainers.evaluating": (
        "agents envs trainers.config trainers.data trainers.evaluation "
        "trainers.reporting trainers.saving"
    ),
    "trainers": (
        "agents agents.loading envs trainers.ahead trainers.algorithms trainers.base "
        "trainers.cluster "
        "trainers.config "
        "trainers.data trainers.demonstrations trainers.distributed trainers.dry_runs "
        "trainers.evaluating trainers.evaluation trainers.learner "
        "trainers.learner.memory trainers.learner.optimizers trainers.provenance "
        "trainers.reporting trainers.reporting.advice trainers.rollouts trainers.saving"
    ),
    "commands.saved": (
        "commands commands.completion trainers.inspecting trainers.records trainers.replaying "
        "trainers.rescoring viewer"
    ),
    "commands.training": "commands trainers trainers.config trainers.dry_runs trainers.records",
    "commands.completion": "gymnasium_ids",
    "viewer": "trainers.inspecting trainers.records trainers.saving",
    "commands": (
        "agents agents.loading commands.completion envs envs.environment sandboxes.backends "
        "sandboxes.lifetime "
        "trainers trainers.base trainers.config "
        "trainers.conversations trainers.data trainers.demonstrations trainers.distributed "
        "trainers.evaluating trainers.exporting "
        "trainers.reporting trainers.saving trainers.schema"
    ),
}  # fmt: skip


def room_of(path: Path) -> str:
    """The room that a file lies in: "envs.tools", or "" for the modules of `gymnast` itself."""
    return ".".join(path.relative_to(ROOT).parent.parts).removeprefix("gymnast").removeprefix(".")


def modules(room: str) -> list[Path]:
    """The files of a room, its `__init__.py` left out: it re-exports, which is no dependency."""
    folder = ROOT.joinpath(*room.split("."))
    if not folder.is_dir():
        folder = ROOT.joinpath("gymnast", *room.split("."))
    return sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Every (line, room) that a file imports, in a function or for type checkers as well.

    A module of `gymnast` itself is its own name in place of a room.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{path}:{node.lineno} imports relatively"
            names = [_imported_from(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("gymnast."):
                yield node.lineno, _room_named(name.removeprefix("gymnast."))


def _imported_from(module: str, name: str) -> str:
    """What `from module import name` imports: a room, a module of `gymnast` itself, or a module."""
    dotted = f"{module}.{name}"
    return dotted if module == "gymnast" or dotted.removeprefix("gymnast.") in ROOMS else module


def _room_named(dotted: str) -> str:
    """The room of "envs.tools.definition"; that of "envs.tools", a room, is itself."""
    return dotted if dotted in ROOMS or "." not in dotted else dotted.rpartition(".")[0]


def test_every_folder_is_a_room_of_the_table() -> None:
    folders = {
        room_of(path)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert folders - {""} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_the_rooms_of_its_line_and_no_others(room: str) -> None:
    known = dict.fromkeys(ROOMS[room].split(), "")
    for path in modules(room):
        for line, other in imported(path):
            if other != room and other not in BOTTOM:
                assert other in known, f"{path}:{line} imports {other}"
                known[other] = str(path)
    assert [other for other, path in known.items() if not path] == []  # as long as it must be


def test_no_room_imports_itself_by_way_of_others() -> None:
    TopologicalSorter({room: known.split() for room, known in ROOMS.items()}).prepare()


def test_the_bottom_imports_nothing_above_it() -> None:
    for name in BOTTOM:
        assert {other for _, other in imported(ROOT / f"gymnast/{name}.py")} <= BOTTOM, name


def test_agents_and_environments_do_not_know_each_other() -> None:
    for room, known in ROOMS.items():
        packages = {other.partition(".")[0] for other in known.split()}
        assert not (room.startswith("envs") and packages & {"agents", "trainers"}), room
        assert not (room.startswith("agents") and packages & {"envs", "trainers"}), room


def test_the_trainer_knows_no_agent_by_its_class() -> None:
    """Agents that are trained are made by `make_agent` or given, and known by their protocol."""
    for room in ROOMS:
        for path in modules(room) if room.partition(".")[0] == "trainers" else []:
            others = {other for _, other in imported(path)}
            assert "agents.engine" not in others, path
            assert "TransformersAgent" not in names_in(path), path


def names_in(path: Path) -> set[str]:
    """Every name and attribute that a file's code uses or imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name | ast.alias):
            found.add(node.id if isinstance(node, ast.Name) else node.name)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found
