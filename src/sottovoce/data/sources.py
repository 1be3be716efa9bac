"""Load a public data set by name, from a folder, from the user's cache, or from its official address.

What is done to the values is fixed in this file: division by the largest pixel value, or the ranges written below. No
scaling is computed from the records that are loaded.
"""

import bz2
import gzip
import hashlib
import os
import pickle
import tarfile
import tempfile
import urllib.request
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from sottovoce.data import synthetic
from sottovoce.data.preprocess import Ranges

Records = dict[str, Any]
Pair = tuple[Records, Records]


@dataclass(frozen=True)
class File:
    """A file as its official address serves it, and the SHA-256 of its bytes."""

    name: str
    folder_url: str
    sha256: str


@dataclass(frozen=True)
class Source:
    """A data set that is made of files: the official ones, how they are read, and other forms of them on disk."""

    files: tuple[File, ...]
    read: Callable[[Path], Pair]
    other_forms: tuple[tuple[str, ...], ...] = ()
    image: tuple[int, ...] | None = None
    fetch: Callable[[Path], None] | None = None

    def found_in(self, folder: Path) -> bool:
        """Whether `folder` holds the set in one of its forms."""
        forms = [tuple(file.name for file in self.files), *self.other_forms]
        return any(form and all((folder / name).is_file() for name in form) for form in forms)


def load(name: str, root: str | Path | None = None, image: bool = False, pool: int = 1) -> Pair:
    """Load `name` as (train, test), each `{"features": float32 (n, ...), "label": int32 (n,)}` in numpy.

    Looks in `root` (or the folder that SOTTOVOCE_DATA names), then in the user's cache, then downloads the official
    files there and checks their SHA-256. `image=True` keeps the shape of pictures, (n, height, width, channels);
    `pool` averages blocks of pool x pool pixels.
    The features of 20news are word counts, a scipy CSR matrix. digits, breast-cancer and synthetic need no files.

    >>> train, test = load("digits")
    >>> train["features"].shape, train["label"].dtype.name, len(test["label"])
    ((1438, 64), 'int32', 359)
    """
    if name not in names():
        raise ValueError(f"no data set is called {name!r}; there are {', '.join(names())}")
    shape = (8, 8, 1) if name == "digits" else _SOURCES[name].image if name in _SOURCES else None
    if (image or pool != 1) and shape is None:
        raise ValueError(f"{name} has no pictures: leave image and pool out")
    if shape is not None and (pool < 1 or shape[0] % pool or shape[1] % pool):
        raise ValueError(f"pool is {pool}: it must divide the pictures' {shape[0]} x {shape[1]} pixels")
    pair = _MADE[name]() if name in _MADE else _SOURCES[name].read(_locate(name, root))
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
    """All data sets that `load` knows.

    >>> "mnist" in names()
    True
    """
    return sorted([*_SOURCES, *_MADE])


def available(name: str, root: str | Path | None = None) -> bool:
    """Whether `load` would need no download.

    >>> available("digits")
    True
    """
    return name in _MADE or any(_SOURCES[name].found_in(folder) for folder in _folders(name, root))


def _locate(name: str, root: str | Path | None) -> Path:
    source = _SOURCES[name]
    if root is not None and not Path(root).is_dir():
        raise ValueError(f"the data folder {str(root)!r} does not exist")
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
            if not (cache / file.name).is_file():
                _download(file, cache)
    except OSError as error:
        raise ValueError(
            f"{name} is not on this machine and could not be downloaded ({error}). Either set SOTTOVOCE_DATA to a "
            f"folder that has it in {name}/, or connect and try again (it is then kept in {cache}), or take a set that "
            f"needs no files: {', '.join(sorted(_MADE))}"
        ) from error
    return cache


def _folders(name: str, root: str | Path | None) -> list[Path]:
    given = root if root is not None else os.environ.get("SOTTOVOCE_DATA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sottovoce"
    return [Path(folder) / name for folder in ([given] if given else []) + [cache]]


def _download(file: File, folder: Path) -> None:
    """Fetch into a temporary file and rename it once its sum is right, so that no half file is ever found."""
    from rich.progress import wrap_file  # only downloads need it

    digest = hashlib.sha256()
    with urllib.request.urlopen(file.folder_url + file.name, timeout=30) as response:
        size = int(response.headers.get("Content-Length") or 0)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=file.name, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as out, wrap_file(response, size, description=file.name) as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
                    out.write(block)
            if digest.hexdigest() != file.sha256:
                raise ValueError(
                    f"{file.folder_url}{file.name} has SHA-256 {digest.hexdigest()}, expected {file.sha256}: the "
                    "download was damaged or the file has changed; try again, or put a good copy in SOTTOVOCE_DATA"
                )
            os.replace(temporary, folder / file.name)
        finally:
            Path(temporary).unlink(missing_ok=True)


def _records(features: Any, label: np.ndarray) -> Records:
    return {"features": features, "label": np.asarray(label).astype(np.int32)}


def _pixels(raw: np.ndarray, largest: float = 255.0) -> np.ndarray:
    return np.multiply(raw.reshape(len(raw), -1), np.float32(1.0 / largest), dtype=np.float32)


def _read_idx(folder: Path) -> Pair:
    def array(name: str) -> np.ndarray:
        data = gzip.decompress((folder / name).read_bytes())
        shape = np.frombuffer(data, ">i4", count=data[3], offset=4)  # byte 3 is the number of axes
        values = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
        if data[:3] != b"\x00\x00\x08" or values.size != shape.prod():
            raise ValueError(f"{folder / name} is not a whole idx file of bytes: replace it by the original")
        return values.reshape(shape)

    train, test = (
        _records(_pixels(array(f"{kind}-images-idx3-ubyte.gz")), array(f"{kind}-labels-idx1-ubyte.gz"))
        for kind in ("train", "t10k")
    )
    return train, test


def _read_svmlight(width: int) -> Callable[[Path], Pair]:
    # Test files may never mention the last features: the width is given, not read off.
    def read(folder: Path) -> Pair:
        def records(name: str) -> Records:
            packed = folder / f"{name}.bz2"
            text = bz2.decompress(packed.read_bytes()) if packed.is_file() else (folder / name).read_bytes()
            return _parse_svmlight(text, width, name)

        return records(folder.name), records(f"{folder.name}.t")

    return read


def _parse_svmlight(text: bytes, width: int, name: str) -> Records:
    """Lines of `label index:value ...`, all numbers parsed in one go; label 1 where the given one is positive."""
    if not text.endswith(b"\n"):
        text += b"\n"
    raw = np.frombuffer(text, np.uint8)
    line_ends, colons = np.flatnonzero(raw == ord("\n")), np.flatnonzero(raw == ord(":"))
    pairs = np.diff(np.searchsorted(colons, line_ends), prepend=0)
    try:
        numbers = np.fromstring(text.replace(b":", b" "), sep=" ")
    except ValueError:
        numbers = np.empty(0)
    if numbers.size != pairs.size + 2 * colons.size:
        raise ValueError(f"{name} is not a svmlight text of `label index:value ...` lines: replace it by the original")
    first = np.cumsum(1 + 2 * pairs) - (1 + 2 * pairs)
    entries = np.delete(numbers, first).reshape(-1, 2)
    features = np.zeros((pairs.size, width), dtype=np.float32)
    features[np.repeat(np.arange(pairs.size), pairs), entries[:, 0].astype(int) - 1] = entries[:, 1]
    return _records(features, numbers[first] > 0)


def _read_cifar10(folder: Path) -> Pair:
    """All 60 000 pictures of the official archive, or else the subset that a prepared npz holds."""
    official = _SOURCES["cifar10"].files[0]
    archive = folder / official.name
    if archive.is_file():
        # The archive holds pickles, which may run code: only the published bytes are opened.
        with archive.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != official.sha256:
                raise ValueError(f"{archive} is not the official archive: delete it, and it is downloaded anew")
        batches = {}
        with tarfile.open(archive) as tar:
            for member in tar.getnames():
                if "_batch" in member:
                    batches[Path(member).name] = pickle.load(tar.extractfile(member), encoding="bytes")  # type: ignore[arg-type]
        train = [batches[f"data_batch_{k}"] for k in range(1, 6)]
        sets = [train, [batches["test_batch"]]]
        raw = [(np.concatenate([b[b"data"] for b in s]), np.concatenate([b[b"labels"] for b in s])) for s in sets]
    else:
        with np.load(folder / _CIFAR10_SUBSET) as held:
            raw = [(held[f"x_{kind}"], held[f"y_{kind}"]) for kind in ("train", "test")]
        warnings.warn(
            f"cifar10: {len(raw[0][0])} of 50000 training and {len(raw[1][0])} of 10000 test pictures "
            f"(a subset in {_CIFAR10_SUBSET}, not the official archive)",
            stacklevel=3,
        )
    first, second = (_records(_pixels(_channels_last(x)), y) for x, y in raw)
    return first, second


def _channels_last(pictures: np.ndarray) -> np.ndarray:
    return pictures.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _read_20news(folder: Path) -> Pair:
    with np.load(folder / _NEWS_COUNTS) as held:
        train, test = (
            _records(
                sp.csr_array(
                    (held[f"{kind}_data"].astype(np.float32), held[f"{kind}_indices"], held[f"{kind}_indptr"]),
                    shape=tuple(held[f"{kind}_shape"]),
                ),
                held[f"y_{kind}"],
            )
            for kind in ("train", "test")
        )
    return train, test


def _fetch_20news(folder: Path) -> None:
    """Let scikit-learn download the texts (it checks their SHA-256) and count words, and keep the counts."""
    from sklearn.datasets import fetch_20newsgroups_vectorized

    arrays: dict[str, np.ndarray] = {}
    for kind in ("train", "test"):
        bunch = fetch_20newsgroups_vectorized(subset=kind, data_home=str(folder), normalize=False)
        counts = sp.csr_array(bunch.data)
        arrays |= {f"{kind}_{part}": getattr(counts, part) for part in ("data", "indices", "indptr", "shape")}
        arrays |= {f"y_{kind}": bunch.target}
    temporary = folder / f"{_NEWS_COUNTS}.{os.getpid()}.part.npz"
    np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
    os.replace(temporary, folder / _NEWS_COUNTS)


def _every_fifth_for_test(features: np.ndarray, label: np.ndarray) -> Pair:
    """A split by position alone, the same for everyone."""
    held_out = np.arange(len(label)) % 5 == 4
    return _records(features[~held_out], label[~held_out]), _records(features[held_out], label[held_out])


def _digits() -> Pair:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return _every_fifth_for_test(_pixels(bunch.data, largest=16.0), bunch.target)


def _breast_cancer() -> Pair:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    # Ten measures of a cell nucleus, each as mean, standard error and worst. Round figures above the extremes of this
    # public set, so chosen with it in view: fine for a demonstration, for private records declare yours beforehand.
    largest = np.array([40, 60, 300, 5000, 0.25, 1.5, 1.5, 0.4, 0.8, 0.25])
    ranges = Ranges(np.zeros(30), np.concatenate([largest, largest / 3, largest]))
    return _every_fifth_for_test(ranges.scale(bunch.data), bunch.target)


def _synthetic() -> Pair:
    records = synthetic.logistic(5000, 20, seed=0)
    return _every_fifth_for_test(records["features"], records["label"])


_MADE: dict[str, Callable[[], Pair]] = {
    "digits": _digits,
    "breast-cancer": _breast_cancer,
    "synthetic": _synthetic,
}

_CIFAR10_SUBSET = "cifar10_12k_2k_nchw_uint8.npz"
_NEWS_COUNTS = "20news-bydate-counts.npz"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"


def _idx_files(url: str, train_images: str, train_labels: str, test_images: str, test_labels: str) -> tuple[File, ...]:
    return (
        File("train-images-idx3-ubyte.gz", url, train_images),
        File("train-labels-idx1-ubyte.gz", url, train_labels),
        File("t10k-images-idx3-ubyte.gz", url, test_images),
        File("t10k-labels-idx1-ubyte.gz", url, test_labels),
    )


_SOURCES: dict[str, Source] = {
    "mnist": Source(
        _idx_files(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        _read_idx,
        image=(28, 28, 1),
    ),
    "fashion-mnist": Source(
        _idx_files(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        _read_idx,
        image=(28, 28, 1),
    ),
    "cifar10": Source(
        (
            File(
                "cifar-10-python.tar.gz",
                "https://www.cs.toronto.edu/~kriz/",
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        _read_cifar10,
        other_forms=((_CIFAR10_SUBSET,),),
        image=(32, 32, 3),
    ),
    "a8a": Source(
        (
            File("a8a", _LIBSVM, "d08a37b3fadd4bd3c8b3fc30bdc93b54d7c0f371265c90cbfb931a7efe97cd28"),
            File("a8a.t", _LIBSVM, "fc16c3580048add99056ee4d14105c93f0af63fb8ff6a78f3d66bf5d87c13cd3"),
        ),
        _read_svmlight(123),
        other_forms=(("a8a.bz2", "a8a.t.bz2"),),
    ),
    "a9a": Source(
        (
            File("a9a", _LIBSVM, "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"),
            File("a9a.t", _LIBSVM, "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
        ),
        _read_svmlight(123),
        other_forms=(("a9a.bz2", "a9a.t.bz2"),),
    ),
    "ijcnn1": Source(
        (
            File("ijcnn1.bz2", _LIBSVM, "450dee8470b168e47b9fae1fc160396b8a809c675737837fce3acd51dcdc0481"),
            File("ijcnn1.t.bz2", _LIBSVM, "acd1db430684fdd3f0c768ecc49aa8e749d0004fc117611220c2aa576a7b6a24"),
        ),
        _read_svmlight(22),
    ),
    "20news": Source((), _read_20news, other_forms=((_NEWS_COUNTS,),), fetch=_fetch_20news),
}
