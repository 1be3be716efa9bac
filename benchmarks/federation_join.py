"""Two sites join long lists of ids, and train on the common rows, on a real federation of this machine.

    python -m benchmarks.federation_join [100000]

Each site has that many ids, of which 60 % are common, in an order of its own. Both tables depend on the ids, and the
accuracy on held-out rows tells that rows were joined rightly. Printed: seconds from submission to the join's end and to
the run's, and the bytes of the join's messages. The rows that each site found are compared with the true ones.
"""

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from sottovoce.deploy.federation import Administrator, Federation
from sottovoce.deploy.kits import provision
from sottovoce.deploy.order import Order
from sottovoce.deploy.poc import agree, await_sites, free_port, submitted

SITES, SHARE = ["bank", "shop"], 0.6
TEXT = """
title = "join"
[data]
file = "table.csv"
id = "who"
label = "y"
[data.columns]
a = {range = [-3, 3]}
b = {range = [-3, 3]}
y = {categories = ["no", "yes"]}
[columns]
active = "bank"
[columns.holders]
bank = ["a"]
shop = ["b"]
[method]
name = "Bambi"
inner_steps = 5
batch = 500
rate_x = 0.1
rate_y = 1.0
[run]
steps = 20
[privacy]
epsilon = 2.0
[deploy]
sites = ["bank", "shop"]
deadline = 1800
"""


def write(kits: Path, count: int) -> set[str]:
    """Write both tables; return the common ids."""
    rng, common = np.random.default_rng(0), round(SHARE * count)
    hidden = rng.normal(size=(2 * count - common, 2))
    label = np.where(hidden.sum(axis=1) > 0, "yes", "no")
    for site, first in zip(SITES, (0, count - common)):
        lines = ["who,a,y" if site == "bank" else "who,b"]
        for who in rng.permutation(np.arange(first, first + count)):
            own = f"{hidden[who, SITES.index(site)]:.4f}"
            lines.append(f"customer {who},{own},{label[who]}" if site == "bank" else f"customer {who},{own}")
        (kits / site / "table.csv").write_text("\n".join(lines) + "\n")
    return {f"customer {who}" for who in range(count - common, count)}


class Watch(threading.Thread):
    """Looks when both sites know the common rows, and how long the join's messages are."""

    def __init__(self, kits: Path) -> None:
        super().__init__(daemon=True)
        self.kits, self.began = kits, time.perf_counter()
        self.joined: float | None = None
        self.sizes: dict[str, int] = {}
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.5):
            for site in SITES:
                for path in (self.kits / site / "runs" / "join" / "outbox" / "said").glob("*/000000000-00000[01]"):
                    try:
                        data = path.read_bytes()
                    except OSError:
                        continue
                    if b"join: " in data[:100]:
                        self.sizes[f"{site} {path.name}"] = max(len(data), self.sizes.get(f"{site} {path.name}", 0))
            if self.joined is None and all(self._found(site).exists() for site in SITES):
                self.joined = time.perf_counter() - self.began

    def _found(self, site: str) -> Path:
        return self.kits / site / "runs" / "join" / "joined.json"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        kits = provision(SITES, "localhost", free_port(), Path(folder) / "kits")
        order = Order(TEXT, "join")
        agree(order, kits)
        common = write(kits, count)
        with Federation(kits, SITES) as running:
            admin = Administrator(kits / "admin")
            await_sites(admin, SITES, running.revive)
            watch, before = Watch(kits), os.getloadavg()[0]
            watch.start()
            submitted(order, admin, Path(folder) / "job", lambda line: print(line, file=sys.stderr), running.revive)
            whole = time.perf_counter() - watch.began
            watch.over.set()
            admin.close()
        found = {site: set(json.loads(watch._found(site).read_text())["ids"]) for site in SITES}
        result = json.loads((kits / "bank" / "runs" / "join" / "run" / "result.json").read_text())
        right = all(one == common for one in found.values())
        rows, accuracy = result["about"]["sizes"]["rows"][0], result["history"]["accuracy"][-1]
        if {name.split()[0] for name in watch.sizes} != set(SITES):
            raise RuntimeError(
                f"messages of the join were found of {sorted(watch.sizes)} only: their sizes are unknown"
            )
        sent = {site: sum(size for name, size in watch.sizes.items() if name.startswith(site)) for site in SITES}
        print(f"ids per site {count}, common {len(common)}, found rightly: {right}")
        print(f"seconds to the end of the join {watch.joined or float('nan'):.0f}, to the end of the run {whole:.0f}")
        print("MB of the join's messages: " + ", ".join(f"{site} {size / 1e6:.1f}" for site, size in sent.items()))
        print(f"rows to train on {rows}, accuracy {accuracy:.3f}")
        print(f"load of the machine {before:.1f} to {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
