"""A file is written whole or not at all, whoever else writes it."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from sottovoce.files import write_atomically


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
