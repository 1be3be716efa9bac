"""Marks that several tests share."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Return parameters: those in `kept` run in `make test`, all of them in `make test-all`."""
    return [case if case in kept else pytest.param(case, marks=pytest.mark.slow) for case in cases]
