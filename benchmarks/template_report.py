"""Run every check on every real chat template, and write the results to docs/templates.md.

`python benchmarks/template_report.py` writes the page; with `--failures [NAME ...]` it prints what
fails, one line for each check.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import template_checks as checks
import template_repairs
from template_corpus import SOURCES, load
from template_exceptions import EXCEPTIONS
from template_messages import ANSWER, MARKED, THOUGHT, MessageDict, calling
from template_results import Result, Subject, examine

REPORT = Path(__file__).parent.parent / "docs" / "templates.md"
INTRODUCTION = """# Chat templates

How well Gymnast's renderer handles the chat templates of real models. The code knows no model by
name: it derives how a template writes calls from the template's own renderings. This page is
generated, and a test fails when it is out of date:

<!-- commands: long -->
```sh
python benchmarks/template_report.py
pytest -m "network and not slow" tests/templates
```

The templates are those of {sources}.
No package carries the models' own tokenizers, so each template is tried with a byte-level tokenizer
that has the control tokens in the template's text.

The columns:

- *tools*: "native" if the template announces the tools and writes calls; "calls" if it writes calls
  and results but announces no tools, so that their schemas go into the system prompt; "plain
  protocol" if it does neither, so that everything is written as ordinary text.
- *calls*: the kind of payload derived, by its class (`envs/rendering/calls/kinds.py`).
- *preserves*: whether earlier turns stay as they were written; "not thoughts" if reasoning is
  dropped from them. In training, the context never changes; this column says whether rendering
  the same conversation again would give another text.
- *turn ends*: the tokens that end a turn of text, and those of a turn of calls if they differ.
- *imitable*: markup that is ordinary text for this tokenizer, so that a tool's result or a user can
  imitate it. Where the cell is empty, no text becomes markup.
- *verdict*: "exact" if calls are read back as the template writes them, whatever their names,
  quotes, newlines and nested values; if what is appended, and what `Renderer.encode` returns for a
  message, reads exactly as the template writes it; and if no text becomes a control token. "lossy"
  says what the template itself writes wrongly; there, the renderer reads what a model rightly
  writes.

{counts}

| template | tools | calls | preserves | turn ends | imitable | verdict |
| --- | --- | --- | --- | --- | --- | --- |
"""


def report(results: dict[str, Result]) -> str:
    """The whole page, from the results by the templates' names."""
    sources = ", ".join(f"`{source.project}=={source.version}`" for source in SOURCES)
    rows = "".join(_row(name, result) for name, result in results.items())
    return INTRODUCTION.format(sources=sources, counts=_counts(results)) + rows


def _counts(results: dict[str, Result]) -> str:
    writing = [result for result in results.values() if result.writes_calls]
    read = sum(result.round_trips for result in writing)
    exact = sum(not result.failures for result in results.values())
    kinds = Counter(_tools(result) for result in results.values())
    lines = [
        f"{len(results)} templates: " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()),
        f"{len(writing)} write calls; {read} of them ({read / len(writing):.0%}) are read back "
        "as the template writes them",
        f"{exact} of all templates pass every check",
    ]
    return "\n".join(f"- {line}." for line in lines)


def _row(name: str, result: Result) -> str:
    subject = result.subject
    cells = [name, _tools(result)]
    if subject is None:
        cells += ["", "", "", ""]
    else:
        dialect = subject.renderer.dialect
        cells += [
            type(dialect.payload).__name__ if dialect else "",
            _preserves(subject),
            " ".join(f"`{_escaped(text)}`" for text in _ends(subject)) or "text",
            ", ".join(_imitable(subject)),
        ]
    cells.append(_verdict(name, result))
    return f"| {' | '.join(cells)} |\n"


def _tools(result: Result) -> str:
    if result.subject is None:
        return "refused"
    dialect = result.subject.renderer.dialect
    if dialect is None:
        return "plain protocol"
    return "native" if dialect.announced else "calls"


def _verdict(name: str, result: Result) -> str:
    reasons = [reason for (listed, _), reason in EXCEPTIONS.items() if listed == name]
    if not reasons and result.failures:
        reasons = [f"fails: {check}" for check, _ in result.failures[:1]]
    lossy = template_repairs.REASONS.get(name)
    if lossy and result.round_trips:
        reasons.append(f"lossy: {lossy}")
    return "; ".join(dict.fromkeys(reasons)) if reasons else "exact"


def _turns(subject: Subject) -> Iterator[MessageDict]:
    yield ANSWER
    if subject.reference.most:
        yield calling(*MARKED[:1])


def _preserves(subject: Subject) -> str:
    turns = list(_turns(subject))
    thoughts = [turn | {"reasoning_content": THOUGHT} for turn in turns]
    if not all(_is_preserved(subject, turn) for turn in turns):
        return "no"
    if subject.reference.form.thought and not all(_is_preserved(subject, t) for t in thoughts):
        return "not thoughts"
    return "yes"


def _is_preserved(subject: Subject, turn: MessageDict) -> bool:
    return checks.split(subject.renderer, subject.reference, turn)[0].preserved


def _ends(subject: Subject) -> list[str]:
    """The stop tokens of a turn of text and of one with calls."""
    cuts = [checks.split(subject.renderer, subject.reference, t)[0] for t in _turns(subject)]
    return list(dict.fromkeys(cut.stop for cut in cuts if cut.stop))


def _imitable(subject: Subject) -> Iterator[str]:
    """The markup without a token of its own."""
    added = subject.reference.tokenizer.get_added_vocab()
    dialect = subject.renderer.dialect
    opening = dialect.open or dialect.section_open if dialect else "<tool_call>"
    if not any(token in opening for token in added):
        yield "calls"
    prompt = subject.reference.turn_opening()
    if not any(token in prompt for token in added):
        yield "turns"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def print_failures(wanted: list[str], length: int) -> None:
    """One line for each failing check; only the first few of a template, unless it is named."""
    begun, failing, total = time.monotonic(), 0, 0
    for template in load():
        if wanted and not any(part in template.name for part in wanted):
            continue
        total += 1
        failures = examine(template).failures
        failing += bool(failures)
        for check, reason in failures if wanted else failures[:4]:
            print(f"{template.name} | {check} | {reason if wanted else reason[:length]}")
        if not wanted and failures[4:]:
            rest = ", ".join(check for check, _ in failures[4:])
            print(f"{template.name} | and {len(failures) - 4} more: {rest}")
    seconds = time.monotonic() - begun
    print(f"{failing} of {total} templates fail ({seconds:.0f} s)")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failures", action="store_true", help="print what fails")
    parser.add_argument("--length", type=int, default=160, help="characters of a reason")
    parser.add_argument("names", nargs="*", help="only templates with one of these in their name")
    arguments = parser.parse_args()
    if arguments.failures:
        print_failures(arguments.names, arguments.length)
    else:
        results = {template.name: examine(template) for template in load()}
        REPORT.write_text(report(results), encoding="utf-8")


if __name__ == "__main__":
    main()
