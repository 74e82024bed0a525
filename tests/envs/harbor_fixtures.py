"""Folders of Harbor tasks that tests make."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker.errors import APIError, ImageNotFound

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
    from gymnast.sandboxes.docker.engine import engine_client

    api = engine_client()

    def images() -> set[str]:  # with those that others were built upon
        return {one["Id"] for one in api.images(all=True)}

    before = images()
    yield
    for _ in range(100):
        left = images() - before
        if not left:
            return
        for image in left:
            try:
                api.remove_image(image, force=True)
            except ImageNotFound:
                continue
            except APIError as error:
                if error.status_code != 409:  # another is built upon it, or a box still has it
                    raise
        time.sleep(0.1)
    raise AssertionError(f"images that cannot be removed: {left}")
