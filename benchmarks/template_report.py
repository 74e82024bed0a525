"""Runs every check on every real chat template, and writes down what holds.

python benchmarks/template_report.py                    writes docs/templates.md
python benchmarks/template_report.py --failures [NAME]  prints what fails, one line each
"""

import argparse
import sys
import time

import template_checks as checks
from gymnast.envs import Renderer
from gymnast.errors import GymnastError
from template_corpus import Template, load, tokenizer_for
from template_reference import Reference


def failures(template: Template) -> list[tuple[str, str]]:
    """The checks that fail on a template, and why."""
    try:
        renderer = Renderer(tokenizer_for(template))
    except GymnastError as error:
        return [("construction", str(error))]
    reference = Reference(template, plain=renderer.dialect is None)
    if renderer.dialect is None and reference.writes_calls:
        return [("dialect", "the template writes calls; the renderer uses the plain protocol")]
    found = list(checks.all_failures(renderer, reference))
    refused = [reason for _, reason in found if reason.startswith("refused: ")]
    if len(refused) < 20:
        return found
    return [("refused", refused[0])]  # as a whole: one line says it


def print_failures(wanted: list[str], length: int) -> None:
    """One line for each failing check; a template's checks of one kind and reason only once."""
    begun, failing, total = time.monotonic(), 0, 0
    for template in load():
        if wanted and not any(part in template.name for part in wanted):
            continue
        total += 1
        found = failures(template)
        failing += bool(found)
        for check, reason in found if wanted else found[:4]:
            print(f"{template.name} | {check} | {reason if wanted else reason[:length]}")
        if not wanted and found[4:]:
            print(
                f"{template.name} | and {len(found) - 4} more: {', '.join(n for n, _ in found[4:])}"
            )
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
        return
    sys.exit("not yet")


if __name__ == "__main__":
    main()
