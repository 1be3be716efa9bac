"""Parties with columns, and the join of their rows, on the same driver: TLS from party to party inside calls."""

import jax
import numpy as np

from tests.deploy.test_wire import connect  # noqa: F401  (a fixture)
from tests.runtime import test_join, test_lone_party


def test_a_join_and_a_run_of_parties_with_columns_end_as_by_queues(connect):  # noqa: F811
    lists, _ = test_join.CASES["two"]
    found = test_join.together(lists, connect().of[:2], run="r")
    assert found[0].ids.tolist() == found[1].ids.tolist()
    assert len(found[0].rows) == 3
    ours = test_lone_party.together(test_lone_party.two(run="r"), connect().of[:2])
    theirs = test_lone_party.together(test_lone_party.two())
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(one, other)
