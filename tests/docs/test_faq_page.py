"""docs/faq.md: each question has an answer that names what exists, and a thread it comes from."""

import re

import pytest

from page_names import codes, unknown
from pages import ROOT

PAGE = (ROOT / "docs/faq.md").read_text()
ENTRIES = {
    part.partition("\n")[0]: re.split(r"^## ", part.partition("\n")[2], flags=re.MULTILINE)[0]
    for part in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
}
LINK = re.compile(r"\]\((https://github\.com/[^)]+)\)")
OTHERS = {
    "async def",
    "max_concurrent_envs",  # of OpenEnv
    "padding_side",  # of Transformers
    "prompt + action + observation + ...",
    "self",
    "start_timeout_s",  # of `openenv:URL`
    "auto",
    '{"format": 0.2, "answer": 0.8}',
}


def test_there_are_enough_questions() -> None:
    assert 30 <= len(ENTRIES) <= 45
    assert all(question.endswith("?") for question in ENTRIES)


@pytest.mark.parametrize("question", ENTRIES)
def test_an_answer_names_what_exists(question: str) -> None:
    found = codes(f"{question}\n{ENTRIES[question]}")
    assert not unknown(found, OTHERS)
    pages = re.findall(r"\]\((?!https?:)[^)]+\)", ENTRIES[question])
    assert found or pages, "name a key, a command or a page"


@pytest.mark.parametrize("question", ENTRIES)
def test_an_answer_says_where_it_was_asked(question: str) -> None:
    links = LINK.findall(ENTRIES[question])
    assert links
    threads = [link for link in links if re.search(r"/(?:issues|pull)/\d+$", link)]
    assert threads or "/docs/" in links[0]


def test_the_tracker_in_a_link_is_the_one_that_it_names() -> None:
    for name, link in re.findall(r"\[([\w. -]+ \d+)\]\((https://github\.com/[^)]+)\)", PAGE):
        assert link.endswith("/" + name.rpartition(" ")[2]), name
