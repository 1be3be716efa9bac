"""Run the commands of the tutorials: a page's files are written, and its commands typed, in an empty folder.

A block ```` ```{code-block} LANGUAGE ```` with a `:caption:` is a file of that name. In a block ```` ```console ````,
lines after `$ ` are commands, and what follows must be what they print (`...` stands for anything).
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_FENCE = re.compile(r"^```(\S+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CAPTION = re.compile(r"^:caption: (\S+)\n+", re.MULTILINE)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect pages that have commands."""
    if file_path.suffix == ".md" and "\n```console\n" in file_path.read_text():
        return Page.from_parent(parent, path=file_path)
    return None


class Page(pytest.File):
    """A page with commands."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield one test: the commands depend on each other."""
        yield Commands.from_parent(self, name="commands")


class Commands(pytest.Item):
    """All commands of one page, in order, in one folder."""

    def runtest(self) -> None:
        """Write the files, run the commands, and compare what they print."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for language, body in _FENCE.findall(self.path.read_text()):
                caption = _CAPTION.match(body)
                if caption:
                    (folder / caption[1]).write_text(body[caption.end() :])
                elif language == "console":
                    for command, wanted in commands(body):
                        got = run(command, folder)
                        if not doctest.OutputChecker().check_output(wanted, got, _FLAGS):
                            raise Different(f"$ {command}\nprinted\n{got}\nand the page says\n{wanted}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *_: object) -> str:  # type: ignore[override]
        """Show the command and both texts, without a stack."""
        return str(excinfo.value) if isinstance(excinfo.value, Different) else str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        """Name the page."""
        return self.path, 0, f"commands of {self.path.name}"


class Different(Exception):
    """A command printed something else than the page says."""


def commands(block: str) -> list[tuple[str, str]]:
    """Return each command of a console block with what it should print."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, wanted) for command, _, wanted in (part.partition("\n") for part in parts)]


def run(command: str, folder: Path) -> str:
    """Return what a command prints on both streams; `sottovoce` and `python` are those of this environment."""
    beside = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": beside + os.pathsep + os.environ["PATH"], "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        shlex.split(command), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise Different(f"$ {command}\nended with exit code {done.returncode}:\n{done.stdout}")
    return done.stdout
