"""Formulas as MathML, which every current browser draws by itself: no script, no request."""

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_mathml(node.astext(), block=False))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    formula = _mathml(node.astext(), block=True)
    writer.body.append(f'<div class="formula" tabindex="0">{formula}</div>')
    raise nodes.SkipNode


def _mathml(formula: str, *, block: bool) -> str:
    text: str = tex2mathml(formula, as_block=block)
    return text


def setup(app: Sphinx) -> None:
    """Make MathML the way in which HTML pages show formulas."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.config.html_math_renderer = "mathml"
