"""How the pages of this folder become a site.

    sphinx-build -W --keep-going -b html docs build/docs

The pages are plain Markdown that reads as well on GitHub. What Sphinx needs beyond that is here:
pages made of files outside this folder (`links.py`), docstrings (`docstrings.py`), and formulas as
MathML, which browsers draw without a script (`formulas.py`); `accessible.py` completes what the
theme writes. `generate.py` writes what in `reference/` is made of the code.
"""

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

import accessible
import docstrings
import formulas
import gymnast
import links

project = "Gymnast"
author = "The authors of Gymnast"
copyright = "the authors of Gymnast, Apache-2.0"
version = release = gymnast.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_fence_as_directive = ["math"]  # as GitHub has them
myst_heading_anchors = 4
highlight_language = "none"  # of blocks that name no language: what is printed
smartquotes = False  # `--option` stays what it is
myst_dmath_allow_space = False  # `$5 and $6` are prices

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 110
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

linkcheck_ignore = [r"https?://(?:localhost|127\.0\.0\.1|10\.|[\w.-]+\.example)"]
linkcheck_anchors = False  # many sites make theirs by script

html_theme = "furo"
pygments_dark_style = "github-dark"  # the default underlines names like links
html_title = f"Gymnast {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/icon.svg"
copybutton_exclude = ".linenos, .gp, .go"


def setup(app: Sphinx) -> None:
    """Connect the parts of this folder."""
    links.setup(app)
    docstrings.setup(app)
    formulas.setup(app)
    accessible.setup(app)
