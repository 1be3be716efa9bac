"""Tidy what the pages show: defaults of arguments by name, whole first lines, no empty last line of an example."""

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


def whole_first_line(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Put the first line of a property together again, which napoleon reads as "type: description".

    >>> lines = ["its scale.", "", ":type: Return the noise"]
    >>> whole_first_line(None, "property", "A.noise", None, None, lines)
    >>> lines
    ['Return the noise: its scale.']
    """
    types = [line for line in lines if line.startswith(":type: ")]
    if what == "property" and types:
        lines[:] = [f"{types[0].removeprefix(':type: ')}: {lines[0]}", *lines[1 : lines.index(types[0]) - 1]]


def without_last_line(app: Sphinx, doctree: nodes.document) -> None:
    """Drop the empty line that an example with `>>>` needs at its end."""
    for block in doctree.findall(nodes.literal_block):
        text = block.astext()
        if text.endswith("\n") and len(block.children) == 1:
            block.rawsource = text.rstrip("\n")
            block.children = [nodes.Text(block.rawsource)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect all three."""
    app.connect("autodoc-process-signature", plain_defaults)
    app.connect("autodoc-process-docstring", whole_first_line, priority=600)  # after napoleon, which has 500
    app.connect("doctree-read", without_last_line)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
