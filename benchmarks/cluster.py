"""A run over 1, 2 and 4 processes of this machine: rounds per second, the bare exchange, and memory per process.

A round is a step of DP-SGD on a graph: two records per agent, clipped, noised, averaged with the neighbours. `bare` is
one `ppermute` of one agent's numbers between neighbouring processes, nothing else. With fewer cores than processes the
processes share them: what is shown then is the cost of spreading, not its gain.

``python -m benchmarks --write cluster`` measures all (4 minutes); ``python -m benchmarks.cluster 20
10000`` one number of agents and floats.
"""

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import sottovoce as sv
from benchmarks import measure
from sottovoce.accounting.account import account_of
from sottovoce.data.held import elsewhere
from sottovoce.runtime import cluster, keeper, peers
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.mesh import Grid, MeshPlace

AGENTS, FLOATS, PROCESSES = (5, 20, 100), (10_000, 1_000_000), (1, 2, 4)
NETWORKS = {"ring": sv.networks.ring, "exponential": sv.networks.exponential}
SECONDS, TURNS = 0.7, 3  # of measured rounds per turn, and turns per setting
MEMORY = (20, 10_000, 300)  # agents, floats and records of the memory table


def parts(agents: int, floats: int, records: int) -> list[Any]:
    """This process's parties' records; of the others, zeros that nobody touches."""
    shape, own = jax.ShapeDtypeStruct((records, floats), np.dtype(np.float32)), Grid(1).held(agents)
    rng = np.random.default_rng(peers.current().rank)
    return [rng.random((records, floats), np.float32) if i in own else elsewhere(shape) for i in range(agents)]


def place(agents: int, floats: int, network: Any, records: int = 2) -> Any:
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), np.zeros(floats, np.float32))
    method = sv.methods.DpSgd(0.1, sv.Release(1.0, 0.1), sv.Full())
    held = parts(agents, floats, records)
    trace = account_of(method, held, 10, network, problem=problem).trace
    if peers.current().count == 1:
        return ArrayPlace(trace, problem, lay_out(held), root_key(0), 1024)
    return MeshPlace(trace, problem, lay_out(held, Grid(1).held(agents)), root_key(0), 1024, 1)


def rounds(agents: int, floats: int, network: Any) -> float:
    """Rounds per second, without compiling: the median of some turns."""
    made = place(agents, floats, network)
    state, _ = made.advance(made.begin(), 0, 1)
    began = time.perf_counter()
    state, _ = made.advance(state, 0, 1)
    once = time.perf_counter() - began
    count = peers.current().lead(lambda: int(min(200, max(1, SECONDS / once))))
    state, _ = made.advance(state, 0, count)
    took = []
    for _ in range(TURNS):
        jax.block_until_ready(state)
        began = time.perf_counter()
        state, _ = made.advance(state, 0, count)
        jax.block_until_ready(state)
        took.append(time.perf_counter() - began)
    return count / statistics.median(took)


def bare(floats: int) -> float:
    """Exchanges per second of one agent's numbers between neighbouring processes."""
    grid, count = Grid(1), peers.current().count
    ring = [(one, (one + 1) % count) for one in range(count)]

    def many(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 20, lambda _, y: jax.lax.ppermute(y, "agents", ring) + 1, x)

    spread = PartitionSpec("agents")
    program = jax.jit(jax.shard_map(many, mesh=grid.mesh, in_specs=spread, out_specs=spread, check_vma=False))
    x = jax.block_until_ready(program(grid.put(np.ones((1, floats), np.float32))))
    began = time.perf_counter()
    jax.block_until_ready(program(x))
    return 20 / (time.perf_counter() - began)


def settings() -> Iterator[tuple[int, int, str]]:
    wanted = [int(given) for given in sys.argv[1:3] if given.isdigit()]
    for agents in wanted[:1] or AGENTS:
        for floats in wanted[1:] or FLOATS:
            for name in NETWORKS:
                yield agents, floats, name


def measured() -> dict[str, Any]:
    """All figures of this number of processes."""
    company = peers.current()
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    agents, floats, records = MEMORY
    big = place(agents, floats, sv.networks.ring(agents), records)
    jax.block_until_ready(big.advance(big.begin(), 0, 2)[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start
    del big
    found: dict[str, Any] = {"memory": [one / 2**10 for one in company.gather(peak)]}
    found["rounds"] = [[*one, rounds(one[0], one[1], NETWORKS[one[2]](one[0]))] for one in settings()]
    found["bare"] = {floats: bare(floats) for floats in FLOATS} if company.count > 1 else {}
    return found


def spread_over(processes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"

        def command(rank: int, address: str) -> list[str]:
            how = ["--worker", str(out), address, str(processes), str(rank)]
            return [sys.executable, "-m", "benchmarks.cluster", *sys.argv[1:3], *how]

        if keeper.keep(processes, range(processes), None, command):
            raise RuntimeError(f"the benchmark with {processes} processes failed")
        return json.loads(out.read_text())


def work(out: str, address: str, processes: int, rank: int) -> None:
    if processes == 1:
        Path(out).write_text(json.dumps(measured()))
        return
    joined = cluster.join(address, processes, rank, cluster.facts("benchmark"))
    found = measured()
    if joined.leads:
        Path(out).write_text(json.dumps(found))
    cluster.finish(joined)


def _own() -> float:
    """CPU seconds that the processes of this benchmark have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    found, load = {}, {}
    for count in PROCESSES:
        before, machine, own, began = os.getloadavg()[0], measure._busy(), _own(), time.perf_counter()
        found[count] = spread_over(count)
        others = max(0.0, (measure._busy() or 0.0) - (machine or 0.0) - (_own() - own))
        share = 100 * others / (time.perf_counter() - began) / (os.cpu_count() or 1)
        load[count] = f"{count}: load {before:.1f} before, other programs used {share:.0f}% of the machine"
    named = [f"{count} process{'es' * (count > 1)}" for count in PROCESSES]
    print("**DP-SGD on a graph, two records per agent: rounds per second**\n")
    print(f"| agents | floats | graph | {' | '.join(named)} |\n|--:|--:|---|{'--:|' * len(named)}")
    for at, (agents, floats, name, _) in enumerate(found[1]["rounds"]):
        speeds = " | ".join(measure._short(found[count]["rounds"][at][3]) for count in PROCESSES)
        print(f"| {agents} | {measure._short(floats)} | {name} | {speeds} |")
    for floats in FLOATS:
        speeds = " | ".join(measure._short(found[count]["bare"][str(floats)]) for count in PROCESSES[1:])
        print(f"| 1 per process | {measure._short(floats)} | bare `ppermute` | - | {speeds} |")
    agents, floats, records = MEMORY
    size = agents * floats * records * 4 / 2**20
    print(f"\nMedian of {TURNS} turns; {os.cpu_count()} cores for all processes. {'; '.join(load.values())}.\n")
    print(f"**Memory per process for {size:.0f} MiB of records** ({agents} agents x {records} x {floats}), in MiB\n")
    print("| processes | above the program alone, per process | largest, times the records |\n|--:|---|--:|")
    for count in PROCESSES:
        each = found[count]["memory"]
        print(f"| {count} | {', '.join(f'{one:.0f}' for one in each)} | {max(each) / size:.2f} |")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        given = sys.argv[sys.argv.index("--worker") + 1 :]
        work(given[0], given[1], int(given[2]), int(given[3]))
    else:
        main()
