"""What a model is shown of calls: the example in an error, and what the template's prompt asks for.

Both are the template's own: an example is cut out of its rendering of a call, and the prompt in
which it tells of the tools may want a word before calls that its history leaves out.
"""

import re
from dataclasses import replace

from gymnast.envs.rendering.calls import markup, probes
from gymnast.envs.rendering.calls.dialect import Dialect
from gymnast.envs.rendering.calls.json_payloads import JsonCalls


def example(dialect: Dialect, written: str) -> str:
    """A call of `TOOL` with `KEY` and `VALUE`, as a model would have to write it.

    Args:
        dialect: How the template writes calls.
        written: What it writes for the first marked call with its first argument alone, behind the
            generation prompt.
    """
    key, value = next(iter(probes.ARGUMENTS[0].items()))
    begin = markup.pattern(dialect.section_open or dialect.open).search(written)
    if begin and not dialect.prewritten:
        written = written[begin.start() :]
    for mark, word in ((probes.NAMES[0], "TOOL"), (key, "KEY"), (value, "VALUE")):
        written = written.replace(mark, word)
    written = written.replace(probes.IDS[0], "call00001").strip()
    last = (dialect.section_close or dialect.close).split()[-1:]
    if not last or written.endswith(last[0]):
        return written
    # Some templates forget the end of a single call.
    ends = dialect.close + dialect.section_close
    there = next(n for n in range(len(ends), -1, -1) if written.endswith(ends[:n]))
    return written + ends[there:]


def with_word_asked_for(dialect: Dialect, prompt: str) -> Dialect:
    """The dialect with the word that the prompt wants before calls without delimiters.

    The prompt shows such a call, the word right before its bracket: `functools[{"name": ...`.
    """
    payload = dialect.payload
    bare = not dialect.open and dialect.announced
    if not bare or not isinstance(payload, JsonCalls) or not payload.name:
        return dialect
    key = re.escape(payload.name[0])
    found = re.search(rf'(?<![^\s"\'`*(])(\w+)\[\s*{{\s*"{key}"', prompt)
    if found is None:
        return dialect
    return replace(dialect, asked_for=found[1], example=f"{found[1]}[{dialect.example}]")
