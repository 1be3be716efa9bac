"""Find the papers' experiments: run files that come with the package, as ``files/<paper>/<experiment>.toml``."""

from pathlib import Path

from sottovoce.naming import unknown

FILES = Path(__file__).parent / "files"


def experiments() -> list[str]:
    """List all experiments as ``paper/experiment``.

    >>> "ldp-dsbo/mnist" in experiments()
    True
    """
    return sorted(path.relative_to(FILES).with_suffix("").as_posix() for path in FILES.glob("*/*.toml"))


def find(name: str) -> Path:
    """Return the run file of an experiment; for an unknown name, the ValueError names the nearest one.

    >>> find("nobody/nothing")
    Traceback (most recent call last):
    ...
    ValueError: there is no experiment 'nobody/nothing'...
    """
    if name not in experiments():
        raise ValueError(unknown("experiment", name, experiments()))
    return FILES / f"{name}.toml"
