"""Load a public data set by name: from a folder, from the user's cache, or from its official address.

>>> train, test = load("digits")
>>> sorted(train)
['features', 'label']

`catalogue` lists the sets, `formats` reads their files.
"""

import os
from pathlib import Path

from sottovoce.data.catalogue import MADE, SOURCES, OfficialFile
from sottovoce.data.formats import TrainTest


def load(name: str, root: str | Path | None = None, image: bool = False, pool: int = 1) -> TrainTest:
    """Load `name` as (train, test), each `{"features": float32 (n, ...), "label": int32 (n,)}` in numpy.

    Looks in `root` (or the folder that SOTTOVOCE_DATA names), then in the user's cache, then downloads the official
    files there and checks their SHA-256. `image=True` keeps the shape of pictures, (n, height, width, channels);
    `pool` averages blocks of pool x pool pixels. The features of 20news are word counts, a scipy CSR matrix. digits,
    breast-cancer and synthetic need no files.

    >>> train, test = load("digits")
    >>> train["features"].shape, train["label"].dtype.name, len(test["label"])
    ((1438, 64), 'int32', 359)
    """
    if name not in names():
        raise ValueError(f"no data set is called {name!r}; there are {', '.join(names())}")
    shape = (8, 8, 1) if name == "digits" else SOURCES[name].image if name in SOURCES else None
    if (image or pool != 1) and shape is None:
        raise ValueError(f"{name} has no pictures: leave image and pool out")
    if shape is not None and (pool < 1 or shape[0] % pool or shape[1] % pool):
        raise ValueError(f"pool is {pool}: it must divide the pictures' {shape[0]} x {shape[1]} pixels")
    pair = MADE[name]() if name in MADE else SOURCES[name].read(_locate(name, root))
    if shape is not None:
        height, width, channels = shape[0] // pool, shape[1] // pool, shape[2]
        for records in pair:
            if pool > 1:
                blocks = records["features"].reshape(-1, height, pool, width, pool, channels)
                records["features"] = blocks.mean(axis=(2, 4)).reshape(-1, height * width * channels)
            if image:
                records["features"] = records["features"].reshape(-1, height, width, channels)
    return pair


def names() -> list[str]:
    """List all data sets that `load` knows.

    >>> "mnist" in names()
    True
    """
    return sorted([*SOURCES, *MADE])


def available(name: str, root: str | Path | None = None) -> bool:
    """Tell whether `load` needs no download.

    >>> available("digits")
    True
    """
    return name in MADE or any(SOURCES[name].found_in(folder) for folder in _folders(name, root))


def _locate(name: str, root: str | Path | None) -> Path:
    source = SOURCES[name]
    if root is not None and not Path(root).is_dir():
        raise ValueError(f"the data folder {str(root)!r} does not exist: give one that does, or none for the cache")
    folders = _folders(name, root)
    for folder in folders:
        if source.found_in(folder):
            return folder
    cache = folders[-1]
    cache.mkdir(parents=True, exist_ok=True)
    try:
        if source.fetch is not None:
            source.fetch(cache)
        for file in source.files:
            _download(file, cache)
    except OSError as error:
        raise ValueError(
            f"{name} is not on this machine and could not be downloaded ({error}). Either set SOTTOVOCE_DATA to a "
            f"folder that has it in {name}/, or connect and try again (it is then kept in {cache}), or take a set that "
            f"needs no files: {', '.join(sorted(MADE))}"
        ) from error
    return cache


def _folders(name: str, root: str | Path | None) -> list[Path]:
    given = root if root is not None else os.environ.get("SOTTOVOCE_DATA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sottovoce"
    return [Path(folder) / name for folder in ([given] if given else []) + [cache]]


def _download(file: OfficialFile, folder: Path) -> None:
    """Fetch a file, unless a good one is there. A file that is incomplete or has the wrong sum is never left behind."""
    import pooch  # slow to import, and only downloads need it

    address = file.folder_url + file.name
    try:
        pooch.retrieve(address, known_hash=file.sha256, fname=file.name, path=folder)
    except ValueError as error:
        raise ValueError(
            f"{address}: {error} Try again, or put a good copy in the folder that SOTTOVOCE_DATA names"
        ) from error
