"""Folders of Harbor tasks that tests make."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MakeTask = Callable[..., Path]

TASK = """
version = "1.0"

[metadata]
difficulty = "easy"

[verifier]
timeout_sec = 20.0

[agent]
timeout_sec = 120.0

[environment]
build_timeout_sec = 60.0
allow_internet = false
memory_mb = 256
"""
FILES = {
    "task.toml": TASK,
    "instruction.md": "Write the sum of the numbers in numbers.txt into sum.txt.\n",
    "environment/Dockerfile": "FROM gymnast-base:debian\nWORKDIR /app\nCOPY numbers.txt .\n",
    "environment/numbers.txt": "3\n4\n5\n",
    "tests/test.sh": """#!/bin/sh
if [ "$(cat /app/sum.txt)" = "$(cat /tests/expected.txt)" ]
then echo 1 >/logs/verifier/reward.txt
else echo 0 >/logs/verifier/reward.txt
fi
""",
    "tests/expected.txt": "12\n",
    "solution/solve.sh": """#!/bin/sh
sum=0
while read -r number; do sum=$((sum + number)); done </app/numbers.txt
echo $sum >/app/sum.txt
""",
}


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Writes the folder of a task; named files replace its own, and None leaves one out."""

    def make(name: str = "sum", files: dict[str, str | bytes | None] | None = None) -> Path:
        folder = tmp_path / "tasks" / name
        for path, content in {**FILES, **(files or {})}.items():
            if content is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                data = content.encode() if isinstance(content, str) else content
                (folder / path).write_bytes(data)
        return folder

    return make


@pytest.fixture(scope="module")
def no_images_left(docker_image: str) -> Iterator[None]:
    """Leaves no image behind that was not there before."""
    from gymnast.sandboxes.docker import images, python_layer
    from gymnast.sandboxes.docker.engine import engine_client

    api = engine_client()
    kinds = (python_layer.REPOSITORY, images.REPOSITORY)  # the first are made of the second
    before = {one["Id"] for kind in kinds for one in api.images(kind)}
    yield
    for kind in kinds:
        for one in api.images(kind):
            if one["Id"] not in before:
                api.remove_image(one["Id"], force=True)
