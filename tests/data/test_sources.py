import bz2
import gzip
import hashlib
import io
import pickle
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from sottovoce.data import available, check_records, load, names
from sottovoce.data.catalogue import SOURCES, OfficialFile, Source
from sottovoce.data.formats import cifar10


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test may read or fill the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sottovoce"


@pytest.fixture
def no_folder(monkeypatch):
    monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)


def idx(array):
    return b"\x00\x00\x08" + bytes([array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def write_idx_set(folder, train=7, test=3):
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    sets = {}
    for kind, n in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (n, 28, 28)).astype(np.uint8)
        labels = rng.integers(0, 10, n).astype(np.uint8)
        (folder / f"{kind}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{kind}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
        sets[kind] = images, labels
    return sets


@pytest.mark.parametrize(
    ("name", "train", "test", "width", "classes"),
    [("digits", 1438, 359, 64, 10), ("breast-cancer", 456, 113, 30, 2), ("synthetic", 4000, 1000, 20, 2)],
)
def test_sets_without_files(no_folder, name, train, test, width, classes):
    assert available(name)
    first, second = load(name)
    assert first["features"].shape == (train, width)
    assert second["features"].shape == (test, width)
    for records in (first, second):
        check_records(records, classes=classes)
        assert records["features"].dtype == np.float32
        assert records["label"].dtype == np.int32
        assert set(records["label"].tolist()) == set(range(classes))
    if name != "synthetic":
        assert first["features"].min() >= 0
        assert first["features"].max() <= 1
    np.testing.assert_array_equal(load(name)[0]["features"], first["features"])


def test_breast_cancer_is_not_scaled_by_its_records(no_folder):
    """Declared ranges are wider than the data: scaled by its own extremes, every column would reach 1."""
    features = np.concatenate([records["features"] for records in load("breast-cancer")])
    assert features.max() < 1.0


def test_pictures_keep_their_pixels(tmp_path):
    sets = write_idx_set(tmp_path / "mnist")
    train, test = load("mnist", root=tmp_path, image=True)
    assert train["features"].shape == (7, 28, 28, 1)
    np.testing.assert_allclose(test["features"][..., 0], sets["t10k"][0] / 255, rtol=1e-6)
    np.testing.assert_array_equal(train["label"], sets["train"][1])
    np.testing.assert_array_equal(load("mnist", root=tmp_path)[0]["features"], train["features"].reshape(7, -1))
    pooled = load("mnist", root=tmp_path, pool=14)[0]["features"]
    np.testing.assert_allclose(pooled[:, 1], train["features"][:, :14, 14:, 0].mean(axis=(1, 2)), rtol=1e-5)
    with pytest.raises(ValueError, match="pool is 5: it must divide"):
        load("mnist", root=tmp_path, pool=5)
    with pytest.raises(ValueError, match="a9a has no pictures"):
        load("a9a", image=True)


def test_a_damaged_idx_file_is_named(tmp_path):
    write_idx_set(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(5, np.uint8))[:-2]))
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte\.gz is not a whole idx file"):
        load("mnist", root=tmp_path)


def write_svmlight(folder, text, packed=True):
    folder.mkdir(exist_ok=True)
    for name in ("a9a", "a9a.t"):
        if packed:
            (folder / f"{name}.bz2").write_bytes(bz2.compress(text))
        else:
            (folder / name).write_bytes(text)


@pytest.mark.parametrize("packed", [True, False])
def test_svmlight_lines_become_dense_rows(tmp_path, packed):
    """Indices start at 1, a line may have no entry, and the last columns exist even if no line names them."""
    write_svmlight(tmp_path / "a9a", b"+1 3:1 11:0.25 \n-1 1:-0.5\n-1\n+1 2:1e-3 122:1", packed)
    expected = np.zeros((4, 123), np.float32)
    expected[0, 2], expected[0, 10], expected[1, 0], expected[3, 1], expected[3, 121] = 1, 0.25, -0.5, 1e-3, 1
    for records in load("a9a", root=tmp_path):
        np.testing.assert_array_equal(records["features"], expected)
        assert records["features"].dtype == np.float32
        assert records["label"].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("line", [b"wrong 2:x", b"+1 124:1", b"+1 0:1"])
def test_a_damaged_svmlight_file_is_named(tmp_path, line):
    write_svmlight(tmp_path / "a9a", b"+1 3:1\n" + line + b"\n")
    with pytest.raises(ValueError, match=r"a9a is not a svmlight text.*from 1 to 123.*replace it by the original"):
        load("a9a", root=tmp_path)


def write_archive(path):
    """A CIFAR-10 archive of the official form, with one picture per batch."""
    pictures = np.random.default_rng(0).integers(0, 256, (6, 3072)).astype(np.uint8)
    with tarfile.open(path, "w:gz") as tar:
        for k, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
            data = pickle.dumps({b"data": pictures[k : k + 1], b"labels": [k]})
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return pictures


def test_the_official_cifar10_archive_is_opened_only_with_its_sum(tmp_path, monkeypatch):
    folder = tmp_path / "cifar10"
    folder.mkdir()
    pictures = write_archive(folder / "cifar-10-python.tar.gz")
    with pytest.raises(ValueError, match="not the official archive"):
        load("cifar10", root=tmp_path)
    source = SOURCES["cifar10"]
    sum_of = hashlib.sha256((folder / "cifar-10-python.tar.gz").read_bytes()).hexdigest()
    monkeypatch.setitem(SOURCES, "cifar10", Source(source.files, cifar10(sum_of), source.other_forms, source.image))
    train, test = load("cifar10", root=tmp_path, image=True)
    assert train["features"].shape == (5, 32, 32, 3)
    assert train["label"].tolist() == [0, 1, 2, 3, 4]
    assert test["label"].tolist() == [5]
    expected = pictures[5].reshape(3, 32, 32).transpose(1, 2, 0) / 255
    np.testing.assert_allclose(test["features"][0], expected, rtol=1e-6)


@pytest.fixture
def official(tmp_path):
    """A folder of small mnist files, and the address of a web server for it."""
    folder = tmp_path / "official"
    write_idx_set(folder)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def serve(monkeypatch, official, spoil=False):
    """Let mnist's official address be the local server."""
    folder, url = official
    source = SOURCES["mnist"]
    sums = {file.name: hashlib.sha256((folder / file.name).read_bytes()).hexdigest() for file in source.files}
    files = tuple(OfficialFile(name, url, "0" * 64 if spoil else sum_of) for name, sum_of in sums.items())
    monkeypatch.setitem(SOURCES, "mnist", Source(files, source.read, source.other_forms, source.image))


def test_a_download_is_checked_and_kept(no_folder, own_cache, official, monkeypatch):
    serve(monkeypatch, official)
    assert not available("mnist")
    train, _ = load("mnist")
    assert train["features"].shape == (7, 784)
    assert available("mnist")
    assert len(list((own_cache / "mnist").iterdir())) == 4
    for path in official[0].iterdir():
        path.unlink()
    np.testing.assert_array_equal(load("mnist")[0]["features"], train["features"])


def test_a_download_with_the_wrong_sum_leaves_nothing(no_folder, own_cache, official, monkeypatch):
    serve(monkeypatch, official, spoil=True)
    with pytest.raises(ValueError, match=r"expected 0000.*SOTTOVOCE_DATA"):
        load("mnist")
    assert list((own_cache / "mnist").iterdir()) == []


def test_offline_names_three_remedies(no_folder, official, monkeypatch):
    serve(monkeypatch, official)
    for path in official[0].iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="set SOTTOVOCE_DATA") as raised:
        load("mnist")
    for remedy in ("mnist/", "connect and try again", "breast-cancer, digits, synthetic"):
        assert remedy in str(raised.value)


def test_bad_names_and_folders(tmp_path):
    with pytest.raises(ValueError, match="no data set is called 'minst'; there are 20news, a8a"):
        load("minst")
    with pytest.raises(ValueError, match="does not exist"):
        load("mnist", root=tmp_path / "nowhere")
    assert len(names()) == 10


@pytest.mark.parametrize(
    ("name", "train", "test", "counts"),
    [
        pytest.param("mnist", (60000, 784), (10000, 784), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        pytest.param("fashion-mnist", (60000, 784), (10000, 784), [6000] * 10),
        pytest.param("a8a", (22696, 123), (9865, 123), [17190, 5506]),
        pytest.param("a9a", (32561, 123), (16281, 123), [24720, 7841]),
        pytest.param("ijcnn1", (49990, 22), (91701, 22), [45137, 4853]),
    ],
)
@pytest.mark.data("mnist", "fashion-mnist", "a8a", "a9a", "ijcnn1")
def test_real_sets(name, train, test, counts):
    first, second = load(name)
    assert first["features"].shape == train
    assert second["features"].shape == test
    assert np.bincount(first["label"]).tolist() == counts
    check_records(first, classes=len(counts))
    check_records(second, classes=len(counts))


@pytest.mark.data("cifar10")
def test_real_cifar10():
    with pytest.warns(UserWarning, match="12000 of 50000 training and 2000 of 10000 test"):
        train, test = load("cifar10", image=True)
    assert train["features"].shape == (12000, 32, 32, 3)
    assert np.bincount(train["label"]).tolist() == [1200] * 10
    assert np.bincount(test["label"]).tolist() == [200] * 10


@pytest.mark.data("20news")
def test_real_20news():
    train, test = load("20news")
    assert train["features"].shape == (11314, 130107)
    assert test["features"].shape == (7532, 130107)
    assert train["features"].format == "csr"
    assert len(np.bincount(train["label"])) == 20
    check_records(train, classes=20)
