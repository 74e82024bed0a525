"""Every command of README and docs works as it is printed, from a clean clone.

In a fresh virtual environment, which holds what the pages tell to install and no more:

    pytest -m "commands and not slow"    those that are marked fast, and short ones shortened
    pytest -m "commands and slow"        all, as printed
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pages import KINDS, PAGES, ROOT, Block, blocks, files, loose_commands

Run = Callable[[str], None]
TIMEOUT_S = {"short": 900, "long": 7200}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_commands_says_how_it_is_run(page: Path) -> None:
    unknown = [block.text for block in blocks(page) if block.kind not in KINDS]
    assert not unknown, f"put <!-- commands: {' or '.join(KINDS)} --> before each"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_within_a_text_stands_in_a_block_too(page: Path) -> None:
    printed = [
        " ".join(line.split("#")[0].split())
        for other in PAGES
        for block in blocks(other)
        for line in block.text.splitlines()
    ]
    loose = [one for one in loose_commands(page) if not any(one in line for line in printed)]
    assert not loose, "these commands are run by no test: move them into blocks"


def test_no_two_commands_train_into_one_folder() -> None:
    """They are run in one clone, one page after the other."""
    folders = Counter(
        folder for page in PAGES for block in blocks(page) for folder in trained_folders(block)
    )
    assert folders["runs/arithmetic"] == 1 and len(folders) > 20
    assert [folder for folder, count in folders.items() if count > 1] == []


def trained_folders(block: Block) -> Iterator[str]:
    """Where the trainings of a block write, but for those that go on with a run."""
    for line in block.text.replace("\\\n", " ").splitlines():
        config = re.search(r"\btrain (\S+\.yaml)", line)
        if config is None or "--resume" in line or "--dry-run" in line:
            continue
        file = ROOT / config[1]
        text = files(block.page).get(config[1]) or (file.read_text() if file.exists() else "")
        found = re.search(r"\boutput_dir=(\S+)", line) or re.search(r"\boutput_dir: (\S+)", text)
        if found or text:  # else it is of a package that `gymnast new` makes
            yield found[1] if found else f"runs/{Path(config[1]).stem}"


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is committed, with a virtual environment that holds nothing."""
    folder = tmp_path_factory.mktemp("commands") / "gymnast"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / ".venv")], check=True)
    return folder


def run(block: Block, command: str, clone: Path, timeout_s: float) -> None:
    for name, text in files(block.page).items():
        (clone / name).write_text(text)
    ours = str(Path(sys.executable).parent)  # has more than the pages tell to install
    others = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder != ours]
    path = os.pathsep.join([str(clone / ".venv/bin"), *others])
    settings = {"PATH": path, "VIRTUAL_ENV": str(clone / ".venv"), "DOCKER_BUILDKIT": "0"}
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=clone,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    said = f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    assert ended.returncode == 0, f"{block.page.name}: {command}\n{said}"
    assert "Traceback" not in said, said


@pytest.fixture
def python_image(request: pytest.FixtureRequest) -> Iterator[None]:
    """The image that Dockerfiles begin from; the tests' own takes its place without a registry."""
    from gymnast.sandboxes.docker.engine import engine_client

    api, name = engine_client(), "python:3.12-slim"
    stands_in = not api.images(name)
    if stands_in:
        api.tag(request.getfixturevalue("docker_image"), name)
    yield
    if stands_in:
        api.remove_image(name, noprune=True)


def cases(*kinds: str) -> list[object]:
    """The blocks of these kinds, in the order of the pages; each needs those before it."""
    return [
        pytest.param(
            block,
            id=f"{block.page.stem}-{number}",
            marks=[
                *([pytest.mark.docker] if block.needs_docker else []),
                *([pytest.mark.vllm] if block.needs_vllm else []),
            ],
        )
        for page in PAGES
        for number, block in enumerate(blocks(page), 1)
        if block.kind in kinds and not is_the_suite(block)
    ]


def is_the_suite(block: Block) -> bool:
    """Whether it runs the tests, this one among them: `.ci/run` does that."""
    return block.kind == "fast" and "pytest" in block.text


@pytest.mark.commands
@pytest.mark.parametrize("block", cases("fast", "short"))
def test_the_commands_work(block: Block, clone: Path, request: pytest.FixtureRequest) -> None:
    if block.needs_docker:
        request.getfixturevalue("python_image")
    command = block.shortened() if block.kind == "short" else block.text
    run(block, command, clone, TIMEOUT_S["short"])


@pytest.mark.commands
@pytest.mark.slow
@pytest.mark.parametrize("block", cases(*KINDS))
def test_the_commands_work_as_printed(
    block: Block, clone: Path, request: pytest.FixtureRequest
) -> None:
    if block.needs_docker:
        request.getfixturevalue("python_image")
    run(block, block.text, clone, TIMEOUT_S["long"])
