"""Show a progress bar for long work, quiet where nobody watches."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress:
    """Show steps done, time left and the newest metrics, on standard error."""

    def __init__(self, title: str, total: int, done: int = 0, shown: bool | None = None) -> None:
        enabled = sys.stderr.isatty() if shown is None else shown
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}"),
            console=Console(stderr=True),
            transient=True,
            disable=not enabled,
        )
        self._task = self._bar.add_task(title, total=total, completed=done, metrics="")

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def show(self, done: int, metrics: dict[str, float]) -> None:
        """Move on."""
        text = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self._bar.update(self._task, completed=done, metrics=text)
