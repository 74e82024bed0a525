"""Pages of the site that are files outside this folder, and the links from and to them.

A page `project/NAME.md` includes such a file. The links of all pages are relative to the files that
they stand in, as GitHub wants them: here they are made to lead to the page instead of the file. A
link whose text is the file's name shows the title of what it leads to.
"""

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = {
    ROOT / "CONTRIBUTING.md": DOCS / "project/contributing.md",
    ROOT / "CHANGELOG.md": DOCS / "project/changelog.md",
    ROOT / "SECURITY.md": DOCS / "project/security.md",
    ROOT / "benchmarks/RESULTS.md": DOCS / "project/results.md",
    ROOT / "benchmarks/RESULTS_GPU.md": DOCS / "project/results_gpu.md",
    ROOT / "examples/README.md": DOCS / "project/examples.md",
    ROOT / "README.md": DOCS / "index.md",
}
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)(?P<file>[^)#\s]+)(?=[)#])")
_FILE_NAME = re.compile(r"\[[\w/]+\.md\](?=\([^)]*\.md\b)")  # as a link's text
_FENCED = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)$)", re.MULTILINE | re.DOTALL)


def relinked(text: str, origin: Path, page: Path) -> str:
    """A file's text with its links as they are from a page.

    Args:
        text: Markdown.
        origin: The file that it stands in.
        page: The page of the site that it becomes.
    """

    def moved(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(origin.parent / link["file"]))
        return os.path.relpath(PAGES.get(target, target), page.parent)

    parts = _FENCED.split(text)  # code, which may look like a link, is every second one
    links = (_FILE_NAME.sub("[]", part) for part in parts[::2])
    parts[::2] = [_LINK.sub(moved, part) for part in links]
    return "".join(parts)


def _of_page(app: Sphinx, name: str, content: list[str]) -> None:
    path = Path(app.env.doc2path(name))
    content[0] = relinked(content[0], path, path)


def _of_included(app: Sphinx, path: Path, _: str, content: list[str]) -> None:
    page = Path(app.env.doc2path(app.env.docname))
    content[0] = relinked(content[0], Path(app.srcdir, path).resolve(), page)


def setup(app: Sphinx) -> None:
    """Rewrite links as pages are read."""
    app.connect("source-read", _of_page)
    app.connect("include-read", _of_included)
