"""Parties on threads of one process: real certificates and real TLS between them, FLARE's calls left out."""

import importlib.util
import shutil
import threading

import pytest

from tests.deploy import cases

if importlib.util.find_spec("nvflare") is None:  # pip install 'sottovoce[deploy]'
    collect_ignore_glob = ["*.py"]


@pytest.fixture(scope="session")
def kits(tmp_path_factory):
    """Certificates for five sites, made once."""
    from sottovoce.deploy.kits import provision

    return provision(cases.SITES, "localhost", 8002, tmp_path_factory.mktemp("deploy") / "kits")


@pytest.fixture
def homes(kits, tmp_path):
    """A copy of the kits, with policies that agree to a run: `homes(text)`."""
    from sottovoce.deploy.order import Order
    from sottovoce.deploy.poc import agree

    def made(text):
        shutil.copytree(kits, tmp_path / "kits", dirs_exist_ok=True)
        agree(Order(text, "r"), tmp_path / "kits")
        return tmp_path / "kits"

    return made


class Hall:
    """Parties that call each other directly. `between(caller, name, data)` may change or break a call."""

    def __init__(self, homes, text, run="r", between=lambda caller, name, data: data):
        from sottovoce.deploy.order import Order
        from sottovoce.deploy.party import Party

        self.between, self.failures = between, {}
        self.parties = {
            name: Party(
                homes / name, name, Order(text, run), lambda to, data, seconds, me=name: self.call(me, to, data)
            )
            for name in Order(text, run).case()[2].sites
        }

    def call(self, caller, name, data):
        transport = self.parties[name].transport
        data = self.between(caller, name, data)
        if transport is None or data is None:
            raise ConnectionError("nobody there")
        return transport.answer(caller, data)

    def run(self, seconds=600, together=False):
        """Run all parties on threads, to their ends; `together`: one that fails ends all, as the relay does."""

        def live(name, party):
            try:
                party.live()
            except BaseException as failure:
                self.failures[name] = failure
                for other in self.parties.values() if together else ():
                    other.stop()

        threads = [threading.Thread(target=live, args=pair, daemon=True, name=pair[0]) for pair in self.parties.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds)
            assert not thread.is_alive(), "a party did not end"
        self.close()
        return self

    def close(self):
        for party in self.parties.values():
            party.close()


@pytest.fixture
def hall():
    return Hall
