"""Run the experiments of a paper's tables side by side, and write their results: many small runs, few compilations.

    python -m benchmarks.paper_tables dpmixsgd/table2-sparsity dpmixsgd/table2-epsilon --reduced --results docs/results

It does what ``sottovoce reproduce PAPER/NAME --side-by-side`` does for one file; several files share programs.
"""

import argparse
import time
from pathlib import Path

from sottovoce.commands.terminal import scale_of
from sottovoce.experiments import side_by_side
from sottovoce.experiments.runfile import RunFile
from sottovoce.laboratory.reproduce import find
from sottovoce.laboratory.results import write


def main() -> None:
    """Run the experiments that the command names."""
    parser = argparse.ArgumentParser(description="Run experiments of a paper's tables side by side.")
    parser.add_argument("names", nargs="+", metavar="PAPER/NAME")
    parser.add_argument("--reduced", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    scale, began = scale_of(given.reduced, given.quick), time.process_time()
    ending = "" if scale == "full" else f" --{scale}"
    runfiles = [RunFile.load(find(name), (), scale) for name in given.names]
    folders = [given.out / (name.replace("/", "-") + ending.replace(" --", "-")) for name in given.names]

    def say(line: str) -> None:
        print(f"{time.process_time() - began:5.0f} s  {line}", flush=True)

    for name, runfile, folder, made in zip(
        given.names, runfiles, folders, side_by_side.execute(list(zip(runfiles, folders)), say)
    ):
        for row in made.rows:
            say(f"{row.name}: {row.final(made.metric or '')[0]:.4f}")
        if given.results is not None:
            command = f"sottovoce reproduce {name}{ending} --side-by-side"
            for path in write(given.results, name, command, runfile, folder):
                say(f"wrote {path}")


if __name__ == "__main__":
    main()
