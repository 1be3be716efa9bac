"""Read the files of public data sets into records.

Each reader takes the folder that holds the files and returns `(train, test)`, two record sets:

    train, test = idx(Path("data/mnist"))
    train["features"]       # float32, one row per picture, values from 0 to 1
    train["label"]          # int32

What is done to the values is fixed in this file (division by the largest pixel value): no scaling is computed from the
records that are read.
"""

import gzip
import hashlib
import pickle
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from sottovoce import archives
from sottovoce.data.parts import Records

TrainTest = tuple[Records, Records]
FileReader = Callable[[Path], TrainTest]

CIFAR10_ARCHIVE = "cifar-10-python.tar.gz"
CIFAR10_SUBSET = "cifar10_12k_2k_nchw_uint8.npz"
NEWS_COUNTS = "20news-bydate-counts.npz"
_LARGEST = 4 << 30  # bytes of a data set in one archive


def records(features: Any, label: np.ndarray) -> Records:
    """Return a record set with labels in int32.

    >>> records(np.zeros((2, 3)), np.array([1.0, 0.0]))["label"].tolist()
    [1, 0]
    """
    return {"features": features, "label": np.asarray(label).astype(np.int32)}


def pixels(raw: np.ndarray, largest: float = 255.0) -> np.ndarray:
    """Flatten pictures and divide them by the largest value that a pixel can have.

    >>> pixels(np.array([[[0, 51], [102, 255]]])).round(1).tolist()
    [[0.0, 0.2..., 0.4..., 1.0]]
    """
    return np.multiply(raw.reshape(len(raw), -1), np.float32(1.0 / largest), dtype=np.float32)


def idx(folder: Path) -> TrainTest:
    """Read the four packed files of the MNIST family.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> two_by_two = bytes([0, 0, 8, 3, 0, 0, 0, 1, *[0, 0, 0, 2] * 2, 0, 51, 102, 255])
    >>> for kind in ("train", "t10k"):
    ...     _ = (folder / f"{kind}-images-idx3-ubyte.gz").write_bytes(gzip.compress(two_by_two))
    ...     _ = (folder / f"{kind}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 1, 7])))
    >>> train, test = idx(folder)
    >>> train["features"].shape, test["label"].tolist()
    ((1, 4), [7])
    """

    def array(name: str) -> np.ndarray:
        data = gzip.decompress((folder / name).read_bytes())
        shape = np.frombuffer(data, ">i4", count=data[3], offset=4)  # byte 3 is the number of axes
        values = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
        if data[:3] != b"\x00\x00\x08" or values.size != shape.prod():
            raise ValueError(f"{folder / name} is not a whole idx file of bytes: replace it by the original")
        return values.reshape(shape)

    train, test = (
        records(pixels(array(f"{kind}-images-idx3-ubyte.gz")), array(f"{kind}-labels-idx1-ubyte.gz"))
        for kind in ("train", "t10k")
    )
    return train, test


def svmlight(width: int) -> FileReader:
    """Return a reader of `<name>` and `<name>.t`, in plain text or packed, where `<name>` is the folder's name.

    `width` is the number of features: a test file may never mention the last ones. A positive label becomes 1, any
    other 0.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "tiny"
    >>> folder.mkdir()
    >>> for name in ("tiny", "tiny.t"):
    ...     _ = (folder / name).write_text("+1 1:0.5 3:2")
    >>> svmlight(width=4)(folder)[0]["features"].tolist()
    [[0.5, 0.0, 2.0, 0.0]]
    """

    def read(folder: Path) -> TrainTest:
        return _svmlight_file(folder, folder.name, width), _svmlight_file(folder, f"{folder.name}.t", width)

    return read


def _svmlight_file(folder: Path, name: str, width: int) -> Records:
    from sklearn.datasets import load_svmlight_file  # slow to import

    packed = folder / f"{name}.bz2"
    try:
        features, label = load_svmlight_file(
            str(packed if packed.is_file() else folder / name), n_features=width, dtype=np.float32, zero_based=False
        )
    except ValueError as error:
        raise ValueError(
            f"{name} is not a svmlight text of `label index:value ...` lines with indices from 1 to {width} ({error}): "
            "replace it by the original"
        ) from error
    return records(features.toarray(), label > 0)


def cifar10(sha256: str) -> FileReader:
    """Return a reader of all 60 000 pictures of the official archive, or else of the subset in a prepared npz.

    The archive holds pickles, which may run code. It is opened only if its bytes have this SHA-256.
    """

    def read(folder: Path) -> TrainTest:
        archive = folder / CIFAR10_ARCHIVE
        raw = _official_cifar10(archive, sha256) if archive.is_file() else _cifar10_subset(folder / CIFAR10_SUBSET)
        first, second = (records(pixels(_channels_last(x)), y) for x, y in raw)
        return first, second

    return read


def _official_cifar10(archive: Path, sha256: str) -> list[tuple[np.ndarray, np.ndarray]]:
    with archive.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise ValueError(f"{archive} is not the official archive: delete it, and it is downloaded anew")
    batches = {}
    with tarfile.open(archive) as tar:
        for member in tar.getnames():
            if "_batch" in member:
                batches[Path(member).name] = pickle.load(tar.extractfile(member), encoding="bytes")  # type: ignore[arg-type]
    sets = [[batches[f"data_batch_{k}"] for k in range(1, 6)], [batches["test_batch"]]]
    return [(np.concatenate([b[b"data"] for b in s]), np.concatenate([b[b"labels"] for b in s])) for s in sets]


def _cifar10_subset(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    held = archives.unpacked(path.read_bytes(), "[a-z_]+", _LARGEST)
    raw = [(held[f"x_{kind}"], held[f"y_{kind}"]) for kind in ("train", "test")]
    warnings.warn(
        f"cifar10: {len(raw[0][0])} of 50000 training and {len(raw[1][0])} of 10000 test pictures "
        f"(a subset in {path.name}, not the official archive)",
        stacklevel=4,  # the call of `load`
    )
    return raw


def _channels_last(pictures: np.ndarray) -> np.ndarray:
    return pictures.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def news(folder: Path) -> TrainTest:
    """Read the word counts of 20news, as sparse matrices."""
    held = archives.unpacked((folder / NEWS_COUNTS).read_bytes(), "[a-z_]+", _LARGEST)
    train, test = (
        records(
            sp.csr_array(
                (held[f"{kind}_data"].astype(np.float32), held[f"{kind}_indices"], held[f"{kind}_indptr"]),
                shape=tuple(held[f"{kind}_shape"]),
            ),
            held[f"y_{kind}"],
        )
        for kind in ("train", "test")
    )
    return train, test
