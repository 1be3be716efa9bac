"""Label stores, checkpoints, models and run folders: bad input, old copies, foreign files, and who may read them.

Attacks a08, b1 and b6; damaged files are in tests/soak.
"""

import json
import shutil
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce import files
from sottovoce.files import locked
from sottovoce.privacy import label_file
from sottovoce.privacy.labels import Fresh, Labels, Memoised, Printed
from sottovoce.privacy.mechanisms import Mechanism
from sottovoce.runtime import checkpoint
from sottovoce.runtime.run_state import RunFolder

LABELS = np.arange(60) % 3


def store(path=None, **given):
    return Labels(LABELS, classes=3, path=path, seed=0, **given)


# What goes in.


def test_one_label_moves_an_accuracy_by_one_count_only():
    """Guesses of shape (n, 1) were compared with every label: stated 1, true 200."""
    labels = store()
    for guesses in (LABELS[:, None], LABELS[None], LABELS[:30], 0, np.eye(3)[LABELS]):
        with pytest.raises(ValueError, match=r"guesses have shape .* one class per row"):
            labels.accuracy(guesses, 1.0)
    for guesses in (LABELS.astype(float), LABELS == 1, LABELS.astype(str)):
        with pytest.raises(TypeError, match="classes as whole numbers"):
            labels.accuracy(guesses, 1.0)
    assert float(labels.epsilon()) == 0.0  # what is refused is not charged


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (LABELS == 1, TypeError, "rows are booleans"),
        ([1, 1], ValueError, "twice"),
        ([0, 60], ValueError, "rows 0 to 59"),
        ([-1], ValueError, "rows 0 to 59"),
        ([[0, 1]], TypeError, "list of row numbers"),
        ([0.0, 1.0], TypeError, "list of row numbers"),
        (["0"], TypeError, "list of row numbers"),
        (3, TypeError, "list of row numbers"),
    ],
)
def test_rows_that_are_no_rows_are_refused_by_every_door(rows, error, message):
    labels = store()
    for ask in (
        lambda: labels.memo(1.0, rows),
        lambda: labels.redraw(1.0, rows),
        lambda: labels.accuracy(np.zeros(np.size(rows), int), 1.0, rows),
    ):
        with pytest.raises(error, match=message):
            ask()
    assert float(labels.epsilon()) == 0.0


@pytest.mark.parametrize("epsilon", [0.0, -1.0, np.nan, np.inf, "1", True, None])
def test_an_epsilon_that_is_none_is_refused_by_every_door(epsilon):
    labels = store()
    for ask in (labels.memo, labels.redraw, lambda e: labels.accuracy(LABELS, e), Memoised):
        with pytest.raises((ValueError, TypeError), match="epsilon is"):
            ask(epsilon)


def test_a_tiny_epsilon_is_drawn_at_once_and_at_its_scale_or_refused():
    with pytest.raises(ValueError, match="a billion labels"):
        Labels(LABELS, classes=3, seed=1).accuracy(LABELS, 1e-300)
    for epsilon in (1e-3, 1e-8):
        labels = Labels(LABELS, classes=3, seed=1)
        found = np.array([labels.accuracy(LABELS, epsilon) for _ in range(30)]) * len(LABELS)
        assert 0.3 < np.mean(np.abs(found - len(LABELS))) * epsilon < 3


def test_noise_of_a_count_has_the_stated_scale():
    labels = Labels(LABELS, classes=3, seed=2)
    noise = np.array([labels.accuracy(LABELS, 1.5) for _ in range(3000)]) * len(LABELS) - len(LABELS)
    assert np.mean(np.abs(noise)) == pytest.approx(1 / 1.5, rel=0.08)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Labels(LABELS, classes=True),
        lambda: Labels(LABELS, classes=2.5),
        lambda: Labels(LABELS, classes=3, ids=np.zeros(60)),
        lambda: Labels(LABELS, classes=3, ids=np.arange(59)),
        lambda: Labels(LABELS, classes=3, budget=sv.Budget(1.0, 0.0, "zero-out")),
        lambda: store().memo(1.0, prior=np.full((60, 3), np.nan)),
        lambda: store().charge({Mechanism(gaussian=1.0): np.ones(60, int)}),
        lambda: store().charge({Mechanism(pure=1.0): np.full(60, 0.5)}),
        lambda: store().charge({"pure": np.ones(60, int)}),
        lambda: store().epsilon(delta="0"),
        lambda: Fresh("1"),
        lambda: Fresh(np.inf),
    ],
)
def test_every_other_input_is_checked(wrong):
    with pytest.raises((ValueError, TypeError)):
        wrong()


@pytest.mark.parametrize("kind", [Fresh, Printed])
def test_two_scales_on_one_key_do_not_share_their_noise(kind):
    """Twice the weights of scale 2 minus those of scale 4 were the labels."""
    vectors, key = jnp.eye(2)[jnp.arange(200) % 2], jax.random.key(0)
    one, two = (kind(scale).weights(vectors, (), key) for scale in (2.0, 4.0))
    assert float(jnp.abs(2 * one - two - vectors).max()) > 1.0


# What is kept.


def test_an_old_copy_of_a_label_store_is_refused(tmp_path):
    path = tmp_path / "labels.npz"
    labels = store(path)
    labels.memo(1.0)
    old = path.read_bytes()
    for _ in range(3):
        labels.redraw(1.0)
    path.write_bytes(old)
    with pytest.raises(ValueError, match=r"labels\.npz is not what was written last.*old copy.*restore both"):
        store(path)
    path.unlink()
    with pytest.raises(ValueError, match="not what was written last"):
        store(path)


def test_a_label_store_without_its_head_is_refused(tmp_path):
    path = tmp_path / "labels.npz"
    store(path).memo(1.0)
    path.with_name("labels.npz.head").unlink()
    with pytest.raises(ValueError, match=r"labels\.npz\.head is missing"):
        store(path)


@pytest.mark.parametrize("kill", range(1, 4))
def test_a_kill_at_any_write_leaves_a_label_store_that_can_be_used(tmp_path, monkeypatch, kill):
    path, calls = tmp_path / "labels.npz", []
    store(path).memo(1.0)

    def boom(descriptor, data):
        calls.append(descriptor)
        if len(calls) == kill:
            raise KeyboardInterrupt
        put(descriptor, data)

    put = files._put
    monkeypatch.setattr(files, "_put", boom)
    with pytest.raises(KeyboardInterrupt):
        store(path).memo(0.5)
    monkeypatch.undo()
    again = store(path)
    assert float(again.epsilon()) in (1.0, 1.5)
    again.memo(0.5)  # charge and draw are written at once: what was lost was not charged
    assert float(store(path).epsilon()) == 1.5


def test_a_second_store_of_the_same_labels_is_refused(tmp_path):
    first = store(tmp_path / "labels.npz", ids=np.arange(60))
    first.memo(1.0)
    with pytest.raises(ValueError, match=r"these labels have a store already.*labels\.npz"):
        store(tmp_path / "other.npz", ids=np.arange(60))
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(ValueError, match="these labels have a store already"):
        store(elsewhere / "labels.npz", ids=np.arange(60))
    del first  # another process: the folder still tells
    with pytest.raises(ValueError, match="these labels have a store already"):
        store(tmp_path / "other.npz", ids=np.arange(60))
    Labels((LABELS + 1) % 3, classes=3, path=tmp_path / "churn.npz", ids=np.arange(60)).memo(1.0)  # another column


def test_a_copy_of_a_label_store_is_refused_and_a_move_is_not(tmp_path):
    """Two copies do not know what each other spends; one store may live elsewhere."""
    home, copy, moved = tmp_path / "home", tmp_path / "copy", tmp_path / "moved"
    store(home / "labels.npz").memo(1.0)
    shutil.copytree(home, copy)
    with pytest.raises(ValueError, match=r"copy/labels\.npz is a copy of .*home/labels\.npz, which is still there"):
        store(copy / "labels.npz")
    linked = tmp_path / "linked"
    linked.symlink_to(home)
    assert float(store(linked / "labels.npz").epsilon()) == 1.0
    home.rename(moved)
    store(moved / "labels.npz").memo(0.5)
    shutil.copy(copy / "labels.npz", moved / "labels.npz")
    with pytest.raises(ValueError, match="is not what was written last"):
        store(moved / "labels.npz")


def test_the_head_of_a_store_confirms_no_label_without_all_of_them(tmp_path):
    store(tmp_path / "labels.npz").memo(1.0)
    head = json.loads((tmp_path / "labels.npz.head").read_text())
    assert head["labels"] == label_file.mark(head["salt"], LABELS, store()._rows.hexdigest())
    other = LABELS.copy()
    other[0] = 1
    assert head["labels"] != label_file.mark(head["salt"], other, store()._rows.hexdigest())


@pytest.mark.parametrize("content", [b"", b"PK", b"\x93NUMPY", b"not a file of ours", b"[1]", b"null", b"\xff\xfe"])
def test_foreign_files_are_refused(tmp_path, content):
    path = tmp_path / "found"
    path.write_bytes(content)
    for read in (
        lambda: checkpoint.read_meta(path),
        lambda: checkpoint.load(path, []),
        lambda: store(path),
    ):
        with pytest.raises(ValueError, match="found"):
            read()
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.json is damaged, or is not the name of a run .*restore it"):
        RunFolder.open(tmp_path, resume=True)


def test_a_model_is_no_checkpoint_and_an_old_version_is_named(tmp_path, monkeypatch):
    path = tmp_path / "model.npz"
    checkpoint.save(path, [jnp.ones(2)], {}, kind="model")
    with pytest.raises(ValueError, match=r"model\.npz is a model, not a checkpoint"):
        checkpoint.load(path, [jnp.ones(2)])
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoint.read_meta(tmp_path / "nothing.npz")
    monkeypatch.setattr(checkpoint, "VERSION", 2)
    with pytest.raises(ValueError, match="has version 1, and this program reads version 2"):
        checkpoint.load(path, [jnp.ones(2)], kind="model")


def test_what_is_private_is_readable_by_its_owner_only(tmp_path):
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(3))
    method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.1), sampling=sv.Full())
    sv.run(problem, [np.ones((50, 3), np.float32)], method, steps=1, out=tmp_path / "run")
    store(tmp_path / "run" / "labels.npz").memo(1.0)
    public = {"model.npz", "result.json"}
    for file in (tmp_path / "run").iterdir():
        private = stat.S_IMODE(file.stat().st_mode) == 0o600
        assert private != (file.name in public), file.name


def test_a_lock_waits_for_nobody_in_a_folder_that_does_not_exist(tmp_path):
    with locked(tmp_path / "nowhere" / "ledger.jsonl"):
        assert not (tmp_path / "nowhere").exists()
