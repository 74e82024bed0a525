"""Write the pages of docs/reference that are made of the code: `python docs/generate.py`."""

from pathlib import Path

from command_page import command_page
from key_page import key_page

REFERENCE = Path(__file__).parent / "reference"
PAGES = {REFERENCE / "keys.md": key_page, REFERENCE / "commands.md": command_page}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
