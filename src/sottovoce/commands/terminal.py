"""Speak to the terminal: text for people, or with ``--json`` one JSON document for programs.

Results go to standard output, and everything else (what is being done, notes, errors) to standard error. Colours and
progress bars are left out where the output is not a terminal.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.markup import escape
from rich.segment import Segment

from sottovoce.defused import visible
from sottovoce.files import to_json

if TYPE_CHECKING:
    from sottovoce.experiments.runfile import Scale


class _Visible(RenderHook):
    """Write out the control characters of all that is printed: a terminal obeys our colours only."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Shown(one) for one in renderables]


class _Shown:
    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for piece in console.render(self._inner, options):
            yield piece if piece.control else Segment(visible(piece.text), piece.style)


console = Console()
notes = Console(stderr=True, highlight=False)
for _one in (console, notes):
    _one.push_render_hook(_Visible())
RunFilePath = Annotated[Path, typer.Argument(help="a run file", metavar="FILE.toml")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change one key, e.g. run.steps=100")]
Reduced = Annotated[bool, typer.Option("--reduced", help="apply the file's [reduced] table: minutes on a laptop")]
Quick = Annotated[bool, typer.Option("--quick", help="a short try: the file's [quick] table, two [[column]]s")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document in place of text")]


def scale_of(reduced: bool, quick: bool) -> "Scale":
    """Return the scale that the flags ask for.

    >>> scale_of(False, True)
    'quick'
    """
    if reduced and quick:
        raise ValueError("--reduced and --quick are two sizes: give one")
    return "quick" if quick else "reduced" if reduced else "full"


def say(line: str) -> None:
    """Print what is being done, beside the results.

    >>> say("loading")
    """
    notes.print(f"[dim]{escape(line)}[/]", soft_wrap=True)


def print_json(facts: Any) -> None:
    """Print facts as one JSON document on standard output.

    >>> print_json({"epsilon": float("inf"), "file": Path("mine.toml")})
    {
     "epsilon": "infinite",
     "file": "mine.toml"
    }
    """
    print(visible(to_json(facts)), flush=True)


def print_line(line: str) -> None:
    """Print a line as it is: not wrapped, and without colours.

    >>> print_line("wrote mine.toml")
    wrote mine.toml
    """
    console.print(escape(line), highlight=False, soft_wrap=True)


@contextmanager
def stoppable(remedy: str) -> Iterator[None]:
    """Catch Ctrl-C: print what to do next, and exit with the usual code.

    >>> with stoppable("The same command starts again."):
    ...     print("done")
    done
    """
    try:
        yield
    except KeyboardInterrupt:
        notes.print(f"Stopped. {escape(remedy)}", soft_wrap=True)
        raise typer.Exit(130) from None


def say_replaced(lines: Any) -> None:
    """Say what --set replaced."""
    for line in lines:
        notes.print(f"[dim]--set {escape(line)}[/]")
