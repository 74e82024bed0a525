"""What the theme leaves out for those who read by keyboard or have pages read to them."""

import re
from typing import Any

from sphinx.application import Sphinx

_PARAMETERS = re.compile(r"<dl>\s*<dd>.*?</dl>", re.DOTALL)  # of a signature on several lines


def _completed(
    app: Sphinx, page: str, template: str, context: dict[str, Any], document: Any
) -> None:
    """Headings have a level, what scrolls can be reached by keyboard, parameters are a list."""
    for part in ("body", "furo_navigation_tree"):
        text = context.get(part) or ""
        text = text.replace('role="heading"', 'role="heading" aria-level="2"')
        text = text.replace("<pre>", '<pre tabindex="0">')
        text = text.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
        context[part] = _PARAMETERS.sub(_as_list, text)


def _as_list(found: re.Match[str]) -> str:
    return found[0].replace("<dl>", '<dl role="list">').replace("<dd>", '<dd role="listitem">')


def setup(app: Sphinx) -> None:
    """Complete pages as they are written, after the theme has made its part."""
    app.connect("html-page-context", _completed, priority=900)
