"""Run the benchmarks, or the ones named: ``python -m benchmarks [--write] [name ...]``.

Each runs in a process of its own, so that one benchmark's memory and threads are not another's, and has a time limit.
With ``--write`` what it prints also goes to docs/benchmarks.md. A benchmark that fails or takes too long leaves its
section as it was, the others still run, and the exit code says so.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping

from benchmarks import page

# Seconds, several times what each takes on a quiet machine with two cores: there all take below five minutes together.
LIMITS = dict.fromkeys(("startup", "sampling", "agents", "ring", "mlp", "clipping", "ldp_dsbo"), 150)
WHEN_NAMED = {"cluster": 1800}  # too long, and too large, to be run with all others


def run(limits: Mapping[str, int], words: list[str], module: str = "benchmarks.{}", section: str = "{}") -> int:
    """Run the benchmarks named in `words`, all if none is; return how many failed.

    `module` says how to call one, `section` what its part of the page is called.
    """
    named = [word for word in words if word != "--write"]
    write, names = "--write" in words, named or [name for name in limits if name not in WHEN_NAMED]
    unknown = [name for name in names if name not in limits]
    if unknown:
        sys.exit(f"there is no benchmark {unknown[0]}: choose from {', '.join(limits)}")
    failed, start = [], time.perf_counter()
    for name in names:
        print(f"\n## {name}\n", flush=True)
        began = time.perf_counter()
        printed, fault = printed_by([sys.executable, "-m", *module.format(name).split()], limits[name])
        took = f"{time.perf_counter() - began:.0f} s"
        if fault:
            failed.append(name)
            print(f"\n{name}: {fault} ({took}); its section in {page.PAGE.name} is left as it was", flush=True)
        else:
            print(f"\n({took})", flush=True)
            if write:
                page.write(section.format(name), printed)
    print(f"\nall in all {time.perf_counter() - start:.0f} s", flush=True)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", flush=True)
    return len(failed)


def printed_by(command: list[str], limit: float) -> tuple[str, str]:
    """Run a command, show what it prints as it comes, and return that and what went wrong ("" if nothing)."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=page.measure.ROOT)
    assert process.stdout is not None
    lines, late = [], threading.Event()
    timer = threading.Timer(limit, lambda: (late.set(), process.terminate()))
    timer.start()
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    code = process.wait()
    timer.cancel()
    if late.is_set():
        return "".join(lines), f"took longer than its limit of {limit:g} s"
    return "".join(lines), f"ended with status {code}" if code else ""


if __name__ == "__main__":
    sys.exit(run({**LIMITS, **WHEN_NAMED}, sys.argv[1:]) and 1)
