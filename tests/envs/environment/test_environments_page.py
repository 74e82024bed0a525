"""docs/environments.md: its examples run, its table has every kind of error."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from gymnast.envs import Environment, Renderer, call, check_env
from gymnast.envs.records.episode import ErrorKind
from gymnast.envs.tools.bugs import KINDS

PAGE = (Path(__file__).parents[3] / "docs/environments.md").read_text()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Gymnasium's way to start them
def test_the_examples_run_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    for source in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(source, "docs/environments.md", "exec", dont_inherit=True), namespace)
    assert namespace["terminated"] is True and len(namespace["prompts"]) == 2
    printed = capsys.readouterr().out
    assert (
        "\n['hall', 'cellar'] [0.1, 1.1]\n[('ar', 0.1), ('ar', 0.1), ('<|im_end|>', 1.0)]\n"
        in printed
    )
    assert "'75?', 'It is less.', '60?'] 1.0 answered\n" in printed
    lake = re.search(r"```\n(  \(Down\)\n.*?)```", PAGE, re.DOTALL)
    assert lake is not None and lake[1] in printed
    assert "['knock', 'take']\n{'multiply': 1}\n1.0\n" in printed
    assert printed.endswith("[assistant]\nIt is 6.\n")
    namespace["env"].close()


def test_the_class_whose_log_is_shared_fails_as_the_page_shows(renderer: Renderer) -> None:
    blocks = re.findall(r"```python\n(.*?)```\n\n```\n(.*?) \[\.\.\.\]\n```", PAGE, re.DOTALL)
    [(source, shown)] = [each for each in blocks if "class Notes" in each[0]]
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    notes: type[Environment] = namespace["Notes"]

    class Solved(notes):  # type: ignore[misc, valid-type]
        def sample_row(self, rng: Any) -> Any:
            return {"prompt": "Note a."}

        def reward(self, episode: Any) -> float:
            return 1.0

        def solve(self, row: Any) -> Any:
            return [call("note", text="a"), "Done."]

    with pytest.raises(AssertionError, match=re.escape(shown.replace("\n", " "))):
        check_env(Solved(renderer))


def test_every_kind_of_error_and_of_bug_is_explained() -> None:
    kinds = {name for cell in re.findall(r"^\| (`.*?) \|", PAGE, re.M) for name in cell.split(", ")}
    assert {name.strip("`") for name in kinds} == set(get_args(ErrorKind))
    sentence = re.sub(r"\s+", " ", PAGE)
    named = re.search(r"cannot hold, or an (.*?) that the call does not", sentence)
    assert named is not None
    assert set(re.findall(r"\w+Error", named[1])) == {kind.__name__ for kind in KINDS}
