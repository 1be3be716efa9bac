"""Compare with other libraries: ``python -m benchmarks.peers.compare NAME``; every contender has its own process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks import measure
from benchmarks.peers import work

PEERS = measure.ROOT / ".venv-peers" / "bin"
ALL_RANKS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
LOADER = "Batches of the torch contenders are drawn by one mask over the data, which is faster than Opacus's loader."


def ours(name: str) -> list[str | Path]:
    return [sys.executable, "-m", "benchmarks.peers.ours", name]


def peer(module: str, *words: str) -> list[str | Path]:
    return [PEERS / "python", "-m", f"benchmarks.peers.{module}", *words]


def side_by_side(
    title: str, commands: Mapping[str, list[str | Path]], turns: int = 15, **environment: str
) -> measure.Comparison:
    """Start all contenders, let them take turns, and end them."""
    with ExitStack() as stack:
        contenders = {}
        for name, command in commands.items():
            contenders[name] = measure.Remote(command, **environment)
            stack.callback(contenders[name].close)
        return measure.compare(title, contenders, turns, pause=0.25)


def training(name: str, modes: tuple[str, ...], turns: int) -> measure.Comparison:
    """Compare private training, and give each library's speed relative to its own plain SGD."""
    commands = {"ours": ours(name), "ours, plain SGD": ours(f"{name}-plain")}
    commands |= {f"Opacus {mode}": peer("opacus_modes", name, mode) for mode in modes}
    commands |= {"torch, plain SGD": peer("opacus_modes", name, "plain"), "jax-privacy": peer("jax_privacy_step", name)}
    seen = side_by_side(work.TITLES[name], commands, turns)
    seen.show("ours")
    print(f"{LOADER}\n\nThroughput relative to plain SGD with the same Poisson batches:\n")
    for contender in commands:
        if "plain" not in contender:
            plain = "torch, plain SGD" if contender.startswith("Opacus") else "ours, plain SGD"
            low, middle, high = seen.ratio(contender, plain)
            print(f"- {contender} / {plain}: {middle:.2g} ({low:.2g} to {high:.2g})")
    print()
    return seen


def logistic() -> None:
    training("logistic", ("hooks", "ew", "ghost"), 15)


def mlp() -> None:
    training("mlp", ("hooks", "ghost"), 9).want("ours", "Opacus ghost", at_least=2.5)


def cnn() -> None:
    modes = ("hooks", "ew", "ghost")
    seen = training("cnn", modes, 7)
    best = max((f"Opacus {mode}" for mode in modes), key=lambda name: seen.ratio(name, "ours")[1])
    seen.want("ours", best, at_least=1.0)


def hypergradient() -> None:
    title = (
        f"Exact hypergradient of ridge regression with one penalty per feature: n {work.RIDGE_RECORDS}, "
        f"d {work.RIDGE_FEATURES}, {work.RIDGE_STEPS} lower steps and {work.RIDGE_STEPS} of the linear solve, one jit"
    )
    commands = {"JAXopt, conjugate gradients": peer("jaxopt_hypergradient")}
    commands |= {"ours, conjugate gradients": ours("cg"), "ours, Neumann": ours("neumann")}
    seen = side_by_side(title, commands, 25)
    seen.show()
    seen.want("ours, conjugate gradients", "JAXopt, conjugate gradients", at_least=1.0)


def ldp_dsbo() -> None:
    title = (
        f"LDP-DSBO, MNIST's shape (7850 weights, 784 penalties), {work.DSBO_AGENTS} agents, Poisson {work.DSBO_BATCH} "
        f"of {work.DSBO_RECORDS}, the same two releases"
    )
    seen = side_by_side(title, {"torch.func": peer("torch_dsbo"), "ours": ours("ldp-dsbo")}, 9)
    seen.show()
    seen.want("ours", "torch.func", at_least=4.0)
    seen.limit("ours", 4.5)


def dp_mix_sgd() -> None:
    ranks: list[str | Path] = [PEERS / "mpirun", "-n", str(work.MIX_AGENTS), "--oversubscribe"]
    ranks += ["--mca", "mpi_yield_when_idle", "1", *peer("dm_hsgd")]
    title = (
        f"DPMixSGD (clipped and noised) beside DM-HSGD (neither): a9a's shape, {work.MIX_AGENTS} agents, "
        f"batch {work.MIX_BATCH}"
    )
    commands = {"DM-HSGD, NumPy and mpi4py, five ranks": ranks, "ours: DPMixSGD": ours("mix")}
    commands |= {"ours: the same 20 rows in each step": ours("mix-same")}
    seen = side_by_side(title, commands, 9, **ALL_RANKS)
    seen.show()
    seen.want("ours: DPMixSGD", "DM-HSGD, NumPy and mpi4py, five ranks", at_least=30.0)


COMPARISONS = {fn.__name__: fn for fn in (logistic, mlp, cnn, hypergradient, ldp_dsbo, dp_mix_sgd)}

if __name__ == "__main__":
    COMPARISONS[sys.argv[1]]()
