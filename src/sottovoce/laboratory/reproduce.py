"""Find the papers' experiments: run files that come with the package, as ``laboratory/<paper>/<experiment>.toml``."""

from pathlib import Path

from sottovoce.naming import unknown

FILES = Path(__file__).parent


def experiments() -> list[str]:
    """List all experiments as ``paper/experiment``.

    >>> "ldp-dsbo/mnist" in experiments()
    True
    """
    return sorted(_files())


def find(name: str) -> Path:
    """Return the run file of an experiment; for an unknown name, the ValueError names the nearest one.

    >>> find("nobody/nothing")
    Traceback (most recent call last):
    ...
    ValueError: there is no experiment 'nobody/nothing'...
    """
    files = _files()
    if name not in files:
        raise ValueError(unknown("experiment", name, experiments()))
    return files[name]


def _files() -> dict[str, Path]:
    return {f"{path.parent.name.replace('_', '-')}/{path.stem}": path for path in FILES.glob("*/*.toml")}
