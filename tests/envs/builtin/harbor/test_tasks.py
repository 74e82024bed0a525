"""The folders of tasks: which are found, what is read, and what is said of those that cannot be."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.builtin.harbor.environment import Harbor
from gymnast.envs.builtin.harbor.tasks import files_of, read_tasks, without_canary
from gymnast.errors import ConfigError
from harbor_fixtures import TASK, MakeTask


def test_a_folder_of_tasks_and_the_folder_of_one(make_task: MakeTask) -> None:
    one = make_task("one")
    make_task("two", {"solution/solve.sh": None})
    (one.parent / ".git").mkdir()
    (one.parent / "notes").mkdir()
    tasks = read_tasks(one.parent)
    assert list(tasks) == ["one", "two"]
    assert list(read_tasks(one)) == ["one"]
    assert tasks["one"].instruction.startswith("Write the sum")
    assert tasks["one"].settings.memory_mb == 256
    assert (tasks["one"].solution is None, tasks["two"].solution) == (False, None)
    assert list(read_tasks(one.parent, skip=["one"])) == ["two"]


@pytest.mark.parametrize(
    ("path", "content", "why"),
    [
        ("task.toml", "version = ", "task.toml cannot be read"),
        ("task.toml", None, "there is no task.toml"),
        ("instruction.md", None, "there is no instruction.md"),
        ("instruction.md", "# canary 1\n\n \n", "instruction.md says nothing"),
        ("tests/test.sh", None, "there is no tests/test.sh"),
        ("environment/Dockerfile", None, "neither environment/Dockerfile nor"),
        ("environment/docker-compose.yaml", "services: {}", "one container"),
        ("task.toml", TASK + "gpus = 2\n", "a box has no GPU"),
    ],
)
def test_what_cannot_be_played_is_named_with_the_way_out(
    make_task: MakeTask, path: str, content: str | None, why: str
) -> None:
    make_task("good")
    folder = make_task("bad", {path: content})
    with pytest.raises(ConfigError, match=rf"bad: .*{why}(.|\n)*skip=\['bad'\]"):
        read_tasks(folder.parent)
    assert list(read_tasks(folder.parent, skip=["bad"])) == ["good"]


def test_a_task_of_the_first_terminal_bench_is_told_how_it_is_turned_into_this(
    tmp_path: Path,
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "task.yaml").write_text("instruction: Do it.")
    with pytest.raises(ConfigError, match=r"Terminal-Bench 1 do: `harbor task migrate"):
        read_tasks(tmp_path)


def test_a_folder_without_tasks_and_names_of_none(make_task: MakeTask, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        read_tasks(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="there is no task in"):
        read_tasks(tmp_path / "empty")
    with pytest.raises(ConfigError, match=r"skip names \['other'\]"):
        read_tasks(make_task("one").parent, skip=["other"])
    with pytest.raises(ConfigError, match=r"skip names each of the 1 tasks"):
        read_tasks(make_task("one").parent, skip=["one"])


@pytest.mark.parametrize("setting", ["skip", "ignore"])
def test_a_text_in_place_of_a_list_is_no_list_of_letters(make_task: MakeTask, setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"{setting} must be a list, got 'one'.*=\['one'\]"):
        read_tasks(make_task("one").parent, **{setting: "one"})


def test_links_to_folders_of_one_name_are_tasks_of_their_own(
    make_task: MakeTask, tmp_path: Path
) -> None:
    first = make_task("one")
    other = tmp_path / "elsewhere" / "one"
    other.parent.mkdir()
    first.rename(other)
    first = make_task("one")
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    (chosen / "a").symlink_to(first)
    (chosen / "b").symlink_to(other)
    assert {name: task.folder for name, task in read_tasks(chosen).items()} == {
        "a": first.resolve(),
        "b": other.resolve(),
    }


def test_fields_are_ignored_by_name(make_task: MakeTask) -> None:
    folder = make_task("one", {"task.toml": TASK + "gpus = 1\n"})
    assert list(read_tasks(folder, ignore=["environment.gpus"])) == ["one"]


def test_files_with_their_bytes_and_rights_in_order(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "b.bin").write_bytes(b"\xff\0")
    (tmp_path / "a.sh").write_text("x")
    (tmp_path / "a.sh").chmod(0o755)
    (tmp_path / "loop").symlink_to(tmp_path)
    found = [(file.path, file.content, file.executable) for file in files_of(tmp_path)]
    assert found == [("a.sh", b"x", True), ("below/b.bin", b"\xff\0", False)]


@given(st.text(st.characters(exclude_characters="\r"), max_size=80))
def test_an_instruction_loses_nothing_but_marked_lines_at_its_beginning(text: str) -> None:
    kept = without_canary(text)
    assert text.endswith(kept)
    cut = text[: len(text) - len(kept)].split("\n")
    assert all(not line.strip() or "canary" in line.lower() for line in cut)
    assert without_canary("<!-- harbor-canary GUID 1 -->\n# CANARY\n\n" + text) == kept


def test_rows_name_their_task_and_hold_no_tests(make_task: MakeTask) -> None:
    env = Harbor(tasks=make_task().parent, episode_timeout_s=60.0)
    assert env.rows == [
        {
            "prompt": "Write the sum of the numbers in numbers.txt into sum.txt.\n",
            "task": "sum",
            "limits": {"episode_timeout_s": 60.0},
        }
    ]


def test_without_tasks_there_is_nothing_to_play() -> None:
    with pytest.raises(ConfigError, match=r"tasks is None; name a folder"):
        Harbor().reset()


def test_another_backend_than_docker_is_refused(make_task: MakeTask) -> None:
    with pytest.raises(ConfigError, match="played in containers"):
        Harbor(tasks=make_task(), sandbox="landlock")
