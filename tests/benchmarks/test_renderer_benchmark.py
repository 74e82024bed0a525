"""The renderer's benchmark runs, and says what it could not compare."""

import pytest

from gymnast.agents.loading.tiny import CHAT_TEMPLATE
from renderer import compare, once, scaling
from template_corpus import Template

pytestmark = pytest.mark.slow  # importing TRL takes seconds

TINY = Template("tiny", CHAT_TEMPLATE)
SILENT = Template("silent", "{% for message in messages %}{{ message.role }}{% endfor %}")


def test_every_template_gets_a_line_that_says_what_was_not_compared() -> None:
    _, _, tiny, silent = compare([TINY, SILENT], 3, None)
    # TRL takes the templates in its own table, and this one is not among them.
    assert "refused" in tiny or "not installed" in tiny
    assert "read wrongly" not in tiny
    assert "refused: the chat template of 'silent' does not write" in silent


def test_construction_and_prompts_are_timed() -> None:
    _, line = once([TINY], None)
    name, built, prompt = line.split("|")
    assert name.strip() == "tiny"
    assert float(built) >= 0
    assert float(prompt.split()[0]) > 0


def test_scaling_has_a_line_for_every_size() -> None:
    _, *lines = scaling(TINY, 2, None)
    assert [line.split("|")[0].strip() for line in lines] == [
        "context   1000, result    80",
        "context  32000, result    80",
        "context   1000, result   800",
        "context   1000, result  8000",
    ]
