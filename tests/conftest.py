"""Tests marked `data` need real data sets: they are skipped where SOTTOVOCE_DATA does not offer them."""

import os
from pathlib import Path

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip unless the folder SOTTOVOCE_DATA holds every set that `@pytest.mark.data("mnist", ...)` names."""
    for marker in item.iter_markers("data"):
        root = os.environ.get("SOTTOVOCE_DATA")
        if not root:
            pytest.skip("set SOTTOVOCE_DATA to a folder with the data sets")
        missing = [name for name in marker.args if not (Path(root) / name).is_dir()]
        if missing:
            pytest.skip(f"SOTTOVOCE_DATA has no {', '.join(missing)}")
