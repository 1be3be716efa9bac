"""The papers' experiments: run files that come with the package, as ``files/<paper>/<experiment>.toml``."""

from pathlib import Path

from sottovoce.naming import unknown

FILES = Path(__file__).parent / "files"


def experiments() -> list[str]:
    """All experiments as ``paper/experiment``."""
    return sorted(path.relative_to(FILES).with_suffix("").as_posix() for path in FILES.glob("*/*.toml"))


def find(name: str) -> Path:
    """The run file of an experiment; a ValueError names the nearest if there is none.

    >>> find("nobody/nothing")
    Traceback (most recent call last):
    ...
    ValueError: there is no experiment 'nobody/nothing'...
    """
    if name not in experiments():
        raise ValueError(unknown("experiment", name, experiments()))
    return FILES / f"{name}.toml"
