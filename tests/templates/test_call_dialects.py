"""The families in short write calls as their real templates do."""

import pytest

from call_dialects import FAMILIES, renderer_of
from gymnast.envs import Renderer
from template_corpus import Template, tokenizer_for

pytestmark = pytest.mark.network


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_in_short_has_the_dialect_of_its_real_template(
    family: str, templates: dict[str, Template]
) -> None:
    real = Renderer(tokenizer_for(templates[FAMILIES[family].template])).dialect
    short = renderer_of(family).dialect
    assert real is not None and short is not None
    for part in ("payload", "open", "close", "between", "section_open", "section_close", "several"):
        assert getattr(short, part) == getattr(real, part), part
