"""Configure the documentation site: `make docs` builds it into site/, and a warning stops the build."""

import sys
from pathlib import Path

import sottovoce

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "sottovoce"
author = "the authors of sottovoce"
copyright = "the authors of sottovoce, Apache-2.0"
release = version = sottovoce.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "page_checks", "tidy"]
exclude_patterns = ["_ext", "results/*/reading.md"]  # readings are part of the pages of results

myst_heading_anchors = 3
nb_execution_mode = "cache"  # a notebook that did not change is not run again
nb_execution_cache_path = str(Path(__file__).parents[1] / ".cache" / "notebooks")
nb_execution_raise_on_error = True
nb_render_markdown_format = "myst"  # tables in what a notebook prints
nb_execution_timeout = 600  # seconds per cell, on a busy machine

default_role = "py:obj"  # `run` in a docstring is a name: link it where the reference has it
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"  # the right column is narrow: `fit()`, under its class

html_theme = "sphinx_book_theme"
html_title = "sottovoce"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "show_toc_level": 2,
    "navbar_persistent": [],  # the search field is in the side bar
    "use_download_button": False,
    "use_fullscreen_button": False,
}
