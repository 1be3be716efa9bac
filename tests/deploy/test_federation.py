"""A real federation on this machine: a server, five sites, a process per running job, mutual TLS on loopback."""

import shutil
import time

import psutil
import pytest

from sottovoce.deploy.engine import NETWORK, address
from sottovoce.deploy.federation import Administrator, Federation, end, start
from sottovoce.deploy.kits import provision
from sottovoce.deploy.order import Order
from sottovoce.deploy.poc import agree, await_sites, free_port, submitted
from tests.deploy import cases, column_cases

IN_SHORT = ("DpSgd", "DpGradientTracking")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = provision(cases.SITES, "localhost", free_port(), tmp_path_factory.mktemp("federation") / "kits")
    with Federation(folder, cases.SITES) as federation:
        admin = Administrator(folder / "admin")
        yield federation, admin
        admin.close()


def run(running, text, name, folder):
    """Submit a run and wait for its end, of which the administrator hears; return where the sites' states lie."""
    lines = []
    federation, admin = running
    order = Order(text, name)
    for site in cases.SITES:
        shutil.rmtree(federation.kits / site / "runs", ignore_errors=True)
    agree(order, federation.kits)
    submitted(order, admin, folder / "job", lines.append, federation.revive)
    assert any(line.startswith(f"{cases.SITES[0]} ") for line in lines), lines
    return federation.kits


@pytest.mark.parametrize(
    "method", [name if name in IN_SHORT else pytest.param(name, marks=pytest.mark.slow) for name in cases.METHODS]
)
def test_a_federation_of_five_processes_equals_the_run_on_one_machine(running, method, tmp_path):
    text = cases.text(method)
    kits = run(
        running, text.replace("epsilon = 8.0", "epsilon = 8.0\nbudget = 100.0"), f"equal-{method.lower()}", tmp_path
    )
    apart = cases.furthest(cases.states(kits), cases.one_machine(text))
    print(f"{method}: relative difference {apart:.1e}")
    assert apart < 1e-5


@pytest.mark.slow
def test_a_federation_of_five_processes_with_columns_equals_the_run_on_one_machine(running, tmp_path):
    text = column_cases.text()
    common = column_cases.spread(running[0].kits)
    kits = run(running, text, "equal-bambi", tmp_path)
    whole = column_cases.one_machine(column_cases.text(deployed=False), column_cases.in_order(common, kits), tmp_path)
    apart = column_cases.furthest(kits, whole)
    print(f"Bambi: relative difference {apart:.1e}")
    assert apart < 1e-5


def test_sites_without_a_certificate_of_this_federation_do_not_get_in(running, tmp_path):
    """One with a certificate of another authority, one whose certificate is missing; the others stay connected."""
    federation, admin = running
    await_sites(admin, cases.SITES, federation.revive)
    strangers = provision(
        ["stranger", "naked"], "localhost", address(federation.kits / "north")[1], tmp_path / "foreign"
    )
    (strangers / "naked" / NETWORK / "startup" / "client.crt").unlink()
    processes = [start(strangers / name) for name in ("stranger", "naked")]
    try:
        for turn in range(120):  # 10 seconds, and longer on a busy machine, until the stranger has been told
            time.sleep(0.5)
            assert admin.connected() == sorted(cases.SITES)
            said = (strangers / "stranger" / "console.log").read_text().lower()
            told = "certificate_verify_failed" in said or "cannot" in said or "fail" in said
            if told and turn >= 20:
                break
        assert told, said
    finally:
        for process in processes:
            end(process)


def test_a_site_that_does_not_answer_is_not_connected(running):
    """FLARE lists it for ten minutes. The server waits for its answer, and the administrator waits longer."""
    federation, admin = running
    await_sites(admin, cases.SITES, federation.revive)
    family = psutil.Process(federation.processes["mid"].pid).children(recursive=True)
    for process in family:
        process.suspend()
    try:
        assert admin.connected() == [name for name in sorted(cases.SITES) if name != "mid"]
    finally:
        for process in family:
            process.resume()
    await_sites(admin, cases.SITES, federation.revive)
