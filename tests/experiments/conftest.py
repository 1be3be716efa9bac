"""A tiny run file that every test of experiments starts from."""

import pytest

TINY = """
title = "tiny"

[data]
name = "logistic"
n = 200
dim = 3
agents = 2

[task]
name = "logistic"

[network]
kind = "ring"

[method]
name = "DpSgd"
rate = 0.5
sampling = "full"
gradient = {clip = 1.0}

[run]
steps = 4
every = 2

[privacy]
epsilon = 3.0
"""


@pytest.fixture
def tiny() -> str:
    return TINY
