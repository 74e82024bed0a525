"""A program at a terminal that shows a region until it is told to end; prints as tools do.

python region_program.py          waits for keys; "s" says so, "e" ends it, "x" raises
"""

import os
import signal
import sys
import threading

from rich.console import Console
from rich.text import Text

from gymnast.trainers.reporting.live.terminal import TerminalRegion

over = threading.Event()
raising: list[bool] = []
console = Console(highlight=False)


def lines(width: int, height: int) -> list[Text]:
    """As wide as the terminal is."""
    wide = f"columns {width} ".ljust(width, "=")
    return [Text(wide, no_wrap=True), Text("the second line", no_wrap=True)][:height]


def shout() -> None:
    print("a tool prints")
    print("a tool complains", file=sys.stderr)
    console.print("s was pressed")


def fail() -> None:
    raising.append(True)
    over.set()


def end_at_once(number: int, frame: object) -> None:
    region.give_back()
    os._exit(3)


def notice() -> None:
    assert region.notice("the run stops")


signal.signal(signal.SIGTERM, end_at_once)
region = TerminalRegion(
    console, lines, {"s": shout, "n": notice, "e": over.set, "x": fail}, "s: shout"
)
try:
    region.start()
    print("begun")
    while not over.wait(0.05):
        pass
    if raising:
        raise SystemExit("it failed")
finally:
    region.stop()
print("over")
