"""A file is written whole or not at all, whoever else writes it."""

import errno
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from sottovoce.files import append, locked, read_facts, reserved, write_atomically, write_facts


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fails(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_of_one_path_do_not_mix(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([number]) * 100_000 for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda data: write_atomically(path, data), contents))
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_write_left_is_removed_by_the_next_one(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = tmp_path / f"file.{gone.pid}.0123456789abcdef.part"
    ours, recent = (tmp_path / f"file.{pid}.fedcba9876543210.part" for pid in (os.getpid(), gone.pid))
    others = tmp_path / f"other.{gone.pid}.0123456789abcdef.part"
    for part in (left, ours, others, recent):
        part.write_bytes(b"half")
    for part in (left, ours, others):
        os.utime(part, (0, 0))
    write_atomically(tmp_path / "file", b"whole")
    assert {found.name for found in tmp_path.iterdir()} == {"file", ours.name, others.name, recent.name}


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "where you may write"), (errno.EIO, "check the path")],
)
def test_a_write_that_fails_names_the_file_and_the_remedy(tmp_path, monkeypatch, number, remedy):
    def fails(*given):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    for write in (lambda path: write_atomically(path, b"new"), lambda path: append(path, b"new", at=0)):
        with pytest.raises(OSError, match=f"file cannot be written .*{remedy}") as said:
            write(tmp_path / "file")
        assert said.value.errno == number


def test_a_place_that_is_taken_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    inside = tmp_path / "file" / "inside"
    for place in (inside, tmp_path / "folder", tmp_path / ("n" * 300)):
        with pytest.raises(OSError, match=r"cannot be written .*choose another name"):
            write_atomically(place, b"new")
    for lock in (lambda: locked(inside, writing=True), lambda: reserved(inside)):
        with pytest.raises(OSError, match="cannot be written"), lock():
            pass


def test_facts_are_read_as_what_they_are_or_not_at_all(tmp_path):
    path = tmp_path / "facts.json"
    write_facts(path, "a thing", 2, {"numbers": (1.0, float("inf")), "name": "é"})
    assert read_facts(path, "a thing", 2, "make it again")["numbers"] == [1.0, float("inf")]
    with pytest.raises(ValueError, match=r"is not another \(ValueError: it is a thing\): make it again"):
        read_facts(path, "another", 2, "make it again")
    with pytest.raises(ValueError, match="has version 2, and this program reads version 3"):
        read_facts(path, "a thing", 3, "make it again")
    path.write_bytes(path.read_bytes().replace(b"1.0", b"2.0"))
    with pytest.raises(ValueError, match="it was changed"):
        read_facts(path, "a thing", 2, "make it again")
