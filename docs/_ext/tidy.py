"""Tidy what the pages show: defaults of arguments by name, and examples without an empty last line."""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def plain_defaults(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Write a default that is a function by its name: Sphinx could not read the signature otherwise.

    >>> plain_defaults(None, "class", "A", None, {}, "(project=<function free>, rest=<factory>)", None)
    ('(project=free, rest=...)', None)
    """
    if signature is not None:
        signature = re.sub(r"<function [\w.<>]*?(\w+)(?: at 0x\w+)?>", r"\1", signature).replace("<factory>", "...")
    return signature, returned


def without_last_line(app: Sphinx, doctree: nodes.document) -> None:
    """Drop the empty line that an example with `>>>` needs at its end."""
    for block in doctree.findall(nodes.literal_block):
        text = block.astext()
        if text.endswith("\n") and len(block.children) == 1:
            block.rawsource = text.rstrip("\n")
            block.children = [nodes.Text(block.rawsource)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect both."""
    app.connect("autodoc-process-signature", plain_defaults)
    app.connect("doctree-read", without_last_line)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
