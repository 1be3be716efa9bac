"""Ten thousand calls out of turn on many threads, from a peer and from strangers (`make soak`)."""

import pytest

pytest.importorskip("nvflare")
from tests.deploy.conftest import kits
from tests.deploy.test_hostile_calls import test_calls_at_the_same_time_do_not_crash_a_site

__all__ = ["kits", "test_calls_at_the_same_time_do_not_crash_a_site"]
pytestmark = pytest.mark.slow  # few calls are tried with the other tests of a federation
