"""How often near misses of calls go unnoticed, and text is taken for a call, in every dialect.

    python benchmarks/near_misses.py

The near misses are those of `near_misses.yaml`; each must give a call, read or with an error. The
texts come from installed packages (`ordinary_texts.py`), the same for all dialects, and must give
none; the tools on offer have everyday names (`add`, `search`, `open`, ...). A text that contains
one of the dialect's own tags is about calls: for that dialect it is skipped, and counted.
"""

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from call_dialects import FAMILIES, renderer_of
from gymnast.types import ToolCall
from near_miss_list import TOOLS, Entry, entries
from ordinary_texts import ordinary_texts

MOST_ALARMS = 0.001  # of texts
LEAST_NOTICED = 0.95  # of near misses
_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


@dataclass(frozen=True)
class Alarms:
    """Texts that were tried in one dialect.

    Attributes:
        texts: How many.
        about_calls: How many more were skipped.
        taken: Those taken for a call, each with the call's error.
    """

    texts: int
    about_calls: int
    taken: list[tuple[str, str]]


def calls_in(family: str, text: str) -> list[ToolCall]:
    """The calls that a family's renderer reads in a text, the broken ones too."""
    renderer = renderer_of(family)
    ids = renderer.tokenizer.encode(text, add_special_tokens=False)
    return list(renderer.parse(ids, tools=TOOLS)["tool_calls"])


def unnoticed(listed: Sequence[Entry]) -> list[Entry]:
    """The near misses that are taken for text."""
    return [entry for entry in listed if not calls_in(entry.family, entry.text)]


def alarms(family: str, texts: Sequence[str]) -> Alarms:
    """Read texts in a family's dialect."""
    dialect = renderer_of(family).dialect
    assert dialect is not None
    around = (dialect.section_open, dialect.open, dialect.close, dialect.section_close)
    tags = _TAG.findall(" ".join(around))
    tried = [text for text in texts if not any(tag in text for tag in tags)]
    read = ((text, calls_in(family, text)) for text in tried)
    taken = [(text, str(calls[0].error)) for text, calls in read if calls]
    return Alarms(len(tried), len(texts) - len(tried), taken)


def _main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--texts", type=int, default=500, help="for each dialect")
    texts = ordinary_texts(options.parse_args().texts)
    listed = entries()
    missed = unnoticed(listed)
    of_family, of_missed = Counter(e.family for e in listed), Counter(e.family for e in missed)
    print("| dialect | near misses | unnoticed | texts | about calls | taken for calls |")
    print("| --- | --- | --- | --- | --- | --- |")
    tried = taken = skipped = 0
    for family in FAMILIES:
        result = alarms(family, texts)
        tried, taken = tried + result.texts, taken + len(result.taken)
        skipped += result.about_calls
        cells = (of_family[family], of_missed[family], result.texts, result.about_calls)
        print("|", " | ".join(map(str, (family, *cells, len(result.taken)))), "|", flush=True)
        for text, error in result.taken:
            print(f"    {error[:150]!r} in {text[:150]!r}")
    print(f"| all | {len(listed)} | {len(missed)} | {tried} | {skipped} | {taken} |")
    print(f"\n{1 - len(missed) / len(listed):.1%} noticed, {taken / tried:.3%} false alarms")
    for entry in missed:
        print(f"    unnoticed: {entry.family}, {entry.deviation}: {entry.text!r}")


if __name__ == "__main__":
    _main()
