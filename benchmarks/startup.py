"""Time to the first step: importing, a small model's first step with and without the compilation cache, the demo."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import measure

TURNS = 5
FIRST_STEP = """
import time
began = time.perf_counter()
import jax
loaded, traced = time.perf_counter(), []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: traced.append(seconds) if event.endswith("jaxpr_trace_duration") else None
)
import sottovoce as sv
sv.run; sv.methods.DpSgd
imported = time.perf_counter()
import jax.numpy as jnp, numpy as np
rng = np.random.default_rng(0)
parts = [{"x": rng.normal(size=(400, 20)).astype(np.float32), "y": rng.integers(0, 2, 400).astype(np.int32)}]
problem = sv.Minimize(lambda w, r: -jax.nn.log_softmax(r["x"] @ w)[r["y"]], jnp.zeros((20, 2)))
method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.5), sampling=sv.Poisson(64))
sv.run(problem, parts, method, steps=1)
# The longest trace is that of the step's program, which holds the others.
print(loaded - began, imported - loaded, time.perf_counter() - imported, max(traced))
"""
DEMO = "from sottovoce.cli import main; main()"


def environment(cache: str) -> dict[str, str]:
    """Return the environment of a process with this compilation cache; "" is none.

    Python keeps its bytecode, as it does unless it is told otherwise: to compile our sources is no part of an import.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    paths = {"PYTHONPATH": str(measure.ROOT / "src"), "JAX_COMPILATION_CACHE_DIR": cache}
    every = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    return kept | paths | every


def first_step(cache: str) -> list[float]:
    """Return the seconds of `import jax`, our import, the first step, and of it JAX's tracing, in a fresh process."""
    command = [sys.executable, "-c", FIRST_STEP]
    printed = subprocess.run(command, env=environment(cache), capture_output=True, text=True, check=True).stdout
    return [float(word) for word in printed.split()]


def first_word() -> float:
    """Return the seconds until `sottovoce demo` has printed something."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", DEMO, "demo", "--out", folder],
            env=environment(""), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.read(1)
        took = time.perf_counter() - began
        process.kill()
        process.wait()
    return took


def main() -> None:
    load = os.getloadavg()[0]
    seen: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as cache:
        first_step(cache)
        for _ in range(TURNS):
            jax, own, cold, _ = first_step("")
            cached, traced = first_step(cache)[2:]
            for name, value in (
                ("`import jax`", jax),
                ("`import sottovoce as sv; sv.run; sv.methods.DpSgd` after it", own),
                ("first step of a small model from there, nothing compiled", cold),
                ("the same with the compilation cache", cached),
                ("first word of `sottovoce demo`", first_word()),
                ("of the first step with the cache: JAX tracing the step's program", traced),
            ):
                seen.setdefault(name, []).append(value)
    print("| | seconds | least to most |\n|---|--:|--:|")
    for name, values in seen.items():
        print(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f} |")
    print(f"\n{TURNS} fresh processes each; load {load:.1f} before\n")
    for name, limit in zip(list(seen)[1:], (0.7, 2.0, 0.5, 3.0)):
        measure.want_at_most(f"{name}: seconds", statistics.median(seen[name]), limit)


if __name__ == "__main__":
    main()
