"""Check what Sphinx does not: that what the pages name exists.

Each finding is a warning, and `make docs` turns warnings into errors.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).parents[2]
FRONT = ("README.md", "CONTRIBUTING.md", "SECURITY.md")  # pages outside of the site, whose links Sphinx does not see
log = logging.getLogger(__name__)


def tests_that_are_gone(text: str) -> Iterator[str]:
    """Yield each `tests/file.py::test_name` of a page for which there is no such test."""
    for file, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", text):
        path = ROOT / file
        if not path.exists() or f"def {name}(" not in path.read_text():
            yield f"{file}::{name}"


def links_that_lead_nowhere(text: str) -> Iterator[str]:
    """Yield each link of a page at the project's root to a file that is not there."""
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target and not (ROOT / target).exists():
            yield target


def check(app: Sphinx, env: Any) -> None:
    """Warn of everything that is missing."""
    pages = [Path(env.doc2path(name)) for name in env.found_docs]
    for path in [*pages, *(ROOT / name for name in FRONT)]:
        for test in tests_that_are_gone(path.read_text()):
            log.warning("%s names %s, which does not exist", path.relative_to(ROOT), test)
    for name in FRONT:
        for target in links_that_lead_nowhere((ROOT / name).read_text()):
            log.warning("%s links to %s, which does not exist", name, target)


def setup(app: Sphinx) -> dict[str, bool]:
    """Run the checks once all pages are read."""
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
