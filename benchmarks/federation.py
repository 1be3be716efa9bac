"""Rounds per second of a federation on this machine: our driver beside FLARE's bare exchange of the same bytes.

    python -m benchmarks.federation [--parties 5] [--floats 10000 1000000] [--rounds 50]

Both run on the same server and sites, with mutual TLS on loopback, on a ring. Bare: each site calls each neighbour with
the bytes. Ours: kept on disk before it is sent, TLS from site to site inside the calls, every message checked.
"""

import argparse
import ast
import json
import shutil
import tempfile
import time
from pathlib import Path

from sottovoce.deploy import job, kits
from sottovoce.deploy.federation import DONE, Administrator, Federation
from sottovoce.deploy.poc import await_sites, free_port
from sottovoce.experiments.toml import dump

SITE, WATCH = "benchmarks.federation_site.Exchanges", "benchmarks.federation_site.Watch"


def main() -> None:
    """Print a table."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--parties", type=int, default=5)
    words.add_argument("--floats", type=int, nargs="+", default=[10_000, 1_000_000])
    words.add_argument("--rounds", type=int, default=50)
    given = words.parse_args()
    sites = [f"site{number}" for number in range(given.parties)]
    with tempfile.TemporaryDirectory() as folder:
        made = kits.provision(sites, "localhost", free_port(), Path(folder) / "kits")
        _allow(made, sites)
        with Federation(made, sites) as running:
            admin = Administrator(made / "admin")
            await_sites(admin, sites, running.revive)
            print(f"{given.parties} parties on a ring, {given.rounds} rounds")
            for floats in given.floats:
                speed = {how: _measured(admin, made, sites, how, floats, given.rounds) for how in ("bare", "ours")}
                print(
                    f"{floats} floats, {8 * floats} bytes per party and round: bare {speed['bare']:.1f} rounds/s, "
                    f"ours {speed['ours']:.1f} ({speed['ours'] / speed['bare']:.2f})",
                    flush=True,
                )
            admin.close()


def _allow(made: Path, sites: list[str]) -> None:
    """Let the kits run the benchmark's classes, and write policies with the fingerprints."""
    prints = kits.fingerprints(made, sites)
    for name in (*sites, kits.SERVER):
        path = made / name / "local" / "resources.json"
        settings = json.loads(path.read_text())
        settings["class_allow_list"] += [SITE, WATCH]
        path.write_text(json.dumps(settings))
    for site in sites:
        policy = {"methods": ["none"], "epsilon": 1.0, "delta": 0.0, "budget": 1.0, "data": {"name": "none"}}
        (made / site / "policy.toml").write_text(dump({**policy, "peers": prints}))


def _measured(admin: Administrator, made: Path, sites: list[str], how: str, floats: int, rounds: int) -> float:
    """Return rounds per second."""
    folder = job.write(made / "jobs" / f"{how}-{floats}", "", f"{how}-{floats}", sites)
    config = folder / "app" / "config"
    for name, kind, given in (
        ("server", WATCH, {"sites": sites}),
        ("client", SITE, {"how": how, "floats": floats, "rounds": rounds, "sites": sites, "run": f"{how}-{floats}"}),
    ):
        path = config / f"config_fed_{name}.json"
        settings = json.loads(path.read_text())
        settings["components"][0] |= {"path": kind, "args": given}
        path.write_text(json.dumps(settings))
    times = made / kits.SERVER / "times.json"
    times.unlink(missing_ok=True)
    number = admin.submit(folder)
    while not times.exists() and not admin.status(number).startswith("FINISHED"):
        time.sleep(1.0)
    said = ast.literal_eval(times.read_text())
    while (status := admin.status(number)) and not status.startswith("FINISHED"):
        time.sleep(1.0)
    assert status == DONE, status
    for site in sites:
        shutil.rmtree(made / site / "runs", ignore_errors=True)
    if any(one["state"] != "done" for one in said):
        raise RuntimeError(f"{how}: {said}")
    return rounds / max(one["seconds"] for one in said)


if __name__ == "__main__":
    main()
