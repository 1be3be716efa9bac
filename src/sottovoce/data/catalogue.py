"""List the public data sets that `load` knows: official files with their checksums, and sets that need no files.

To add a set, write its files here and its reader in `formats`:

    "mine": Source((OfficialFile("mine.bz2", "https://example.org/", "<sha256>"), ...), formats.svmlight(20))

What is done to the values is fixed: division by the largest pixel value, or the ranges written below. No scaling is
computed from the records that are loaded.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from sottovoce.data import formats, synthetic
from sottovoce.data.formats import FileReader, TrainTest
from sottovoce.data.preprocess import Ranges

_CIFAR10 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"


@dataclass(frozen=True)
class OfficialFile:
    """Name a file at its official address, and the SHA-256 of its bytes."""

    name: str
    folder_url: str
    sha256: str


@dataclass(frozen=True)
class Source:
    """Describe a data set that is made of files.

    `files` are the official ones and `read` their reader. `other_forms` are other groups of file names that the reader
    accepts. `fetch` obtains the set where the official files cannot be used as they are.
    """

    files: tuple[OfficialFile, ...]
    read: FileReader
    other_forms: tuple[tuple[str, ...], ...] = ()
    image: tuple[int, ...] | None = None
    fetch: Callable[[Path], None] | None = None

    def found_in(self, folder: Path) -> bool:
        """Tell whether `folder` holds the set in one of its forms."""
        forms = [tuple(file.name for file in self.files), *self.other_forms]
        return any(form and all((folder / name).is_file() for name in form) for form in forms)


def _fetch_20news(folder: Path) -> None:
    """Let scikit-learn download the texts (it checks their SHA-256) and count the words; keep the counts."""
    from sklearn.datasets import fetch_20newsgroups_vectorized

    arrays: dict[str, np.ndarray] = {}
    for kind in ("train", "test"):
        bunch = fetch_20newsgroups_vectorized(subset=kind, data_home=str(folder), normalize=False)
        counts = sp.csr_array(bunch.data)
        arrays |= {f"{kind}_{part}": getattr(counts, part) for part in ("data", "indices", "indptr", "shape")}
        arrays |= {f"y_{kind}": bunch.target}
    temporary = folder / f"{formats.NEWS_COUNTS}.{os.getpid()}.part.npz"
    np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
    os.replace(temporary, folder / formats.NEWS_COUNTS)


def _every_fifth_for_test(features: np.ndarray, label: np.ndarray) -> TrainTest:
    """Hold out every fifth record: a split by position alone, the same for everyone."""
    held_out = np.arange(len(label)) % 5 == 4
    return formats.records(features[~held_out], label[~held_out]), formats.records(features[held_out], label[held_out])


def _digits() -> TrainTest:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return _every_fifth_for_test(formats.pixels(bunch.data, largest=16.0), bunch.target)


def _breast_cancer() -> TrainTest:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    # Ten measures of a cell nucleus, each as mean, standard error and worst. The ranges are round figures
    # above the extremes of this public set, so they were chosen by looking at it. This is fine for a demonstration; for
    # private records, declare ranges before you look.
    largest = np.array([40, 60, 300, 5000, 0.25, 1.5, 1.5, 0.4, 0.8, 0.25])
    ranges = Ranges(np.zeros(30), np.concatenate([largest, largest / 3, largest]))
    return _every_fifth_for_test(ranges.scale(bunch.data), bunch.target)


def _synthetic() -> TrainTest:
    records = synthetic.logistic(5000, 20, seed=0)
    return _every_fifth_for_test(records["features"], records["label"])


MADE: dict[str, Callable[[], TrainTest]] = {
    "digits": _digits,
    "breast-cancer": _breast_cancer,
    "synthetic": _synthetic,
}


def _idx_files(
    url: str, train_images: str, train_labels: str, test_images: str, test_labels: str
) -> tuple[OfficialFile, ...]:
    return (
        OfficialFile("train-images-idx3-ubyte.gz", url, train_images),
        OfficialFile("train-labels-idx1-ubyte.gz", url, train_labels),
        OfficialFile("t10k-images-idx3-ubyte.gz", url, test_images),
        OfficialFile("t10k-labels-idx1-ubyte.gz", url, test_labels),
    )


SOURCES: dict[str, Source] = {
    "mnist": Source(
        _idx_files(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        formats.idx,
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
        formats.idx,
        image=(28, 28, 1),
    ),
    "cifar10": Source(
        (OfficialFile(formats.CIFAR10_ARCHIVE, "https://www.cs.toronto.edu/~kriz/", _CIFAR10),),
        formats.cifar10(_CIFAR10),
        other_forms=((formats.CIFAR10_SUBSET,),),
        image=(32, 32, 3),
    ),
    "a8a": Source(
        (
            OfficialFile("a8a", _LIBSVM, "d08a37b3fadd4bd3c8b3fc30bdc93b54d7c0f371265c90cbfb931a7efe97cd28"),
            OfficialFile("a8a.t", _LIBSVM, "fc16c3580048add99056ee4d14105c93f0af63fb8ff6a78f3d66bf5d87c13cd3"),
        ),
        formats.svmlight(123),
        other_forms=(("a8a.bz2", "a8a.t.bz2"),),
    ),
    "a9a": Source(
        (
            OfficialFile("a9a", _LIBSVM, "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"),
            OfficialFile("a9a.t", _LIBSVM, "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
        ),
        formats.svmlight(123),
        other_forms=(("a9a.bz2", "a9a.t.bz2"),),
    ),
    "ijcnn1": Source(
        (
            OfficialFile("ijcnn1.bz2", _LIBSVM, "450dee8470b168e47b9fae1fc160396b8a809c675737837fce3acd51dcdc0481"),
            OfficialFile("ijcnn1.t.bz2", _LIBSVM, "acd1db430684fdd3f0c768ecc49aa8e749d0004fc117611220c2aa576a7b6a24"),
        ),
        formats.svmlight(22),
    ),
    "20news": Source((), formats.news, other_forms=((formats.NEWS_COUNTS,),), fetch=_fetch_20news),
}
