"""What tests share. Those marked `data` are skipped where SOTTOVOCE_DATA does not offer their sets."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sottovoce.runtime import checkpoint


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip unless the folder SOTTOVOCE_DATA holds every set that `@pytest.mark.data("mnist", ...)` names."""
    for marker in item.iter_markers("data"):
        root = os.environ.get("SOTTOVOCE_DATA")
        if not root:
            pytest.skip("set SOTTOVOCE_DATA to a folder with the data sets")
        missing = [name for name in marker.args if not (Path(root) / name).is_dir()]
        if missing:
            pytest.skip(f"SOTTOVOCE_DATA has no {', '.join(missing)}")


@pytest.fixture
def stopped_at_first_save(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """A block in which a run is interrupted as soon as it has saved a checkpoint; the interrupt is expected."""

    @contextmanager
    def block() -> Iterator[None]:
        save = checkpoint.save

        def save_and_stop(*given: Any) -> None:
            save(*given)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save", save_and_stop)
            with pytest.raises(KeyboardInterrupt):
                yield

    return block
