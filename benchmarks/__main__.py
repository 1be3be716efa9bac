"""Run every benchmark of this folder, or the ones named: ``python -m benchmarks [name ...]``."""

import pkgutil
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    here = str(Path(__file__).parent)
    found = sorted(module.name for module in pkgutil.iter_modules([here]) if module.name != "__main__")
    for name in sys.argv[1:] or found:
        print(f"\n{name}", flush=True)
        # a process each, so that one benchmark's memory and threads are not another's
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
