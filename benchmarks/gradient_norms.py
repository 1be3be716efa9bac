"""Print how long records' gradients are at the start of an experiment: quantiles in x and in y.

    python -m benchmarks.gradient_norms dpmixsgd/table3-mnist [--reduced]

The 80 % quantile is the clip that clips the top 20 % of gradients, as Appendix C.1 of the DPMixSGD paper has it. It
depends on the records, and nothing is charged for it.
"""

import argparse

import jax
import numpy as np

from sottovoce.commands.terminal import scale_of
from sottovoce.experiments import planned
from sottovoce.experiments.redraw import redrawn
from sottovoce.experiments.runfile import RunFile
from sottovoce.laboratory.reproduce import find
from sottovoce.trees import norm

RECORDS = 2000


def main() -> None:
    """Print the quantiles for the first variant of a run file."""
    parser = argparse.ArgumentParser(description="Print quantiles of the norms of records' gradients.")
    parser.add_argument("name", metavar="PAPER/NAME")
    parser.add_argument("--reduced", action="store_true")
    given = parser.parse_args()
    case = next(iter(RunFile.load(find(given.name), (), scale_of(given.reduced, False)).cases.values()))
    made = planned.setup(redrawn(case, 1000))  # a seed that is not reported
    problem, records = made.problem, jax.tree.map(lambda leaf: leaf[:RECORDS], made.data[0].gather())

    @jax.jit
    def lengths(record: object) -> tuple[jax.Array, jax.Array]:
        x, y = jax.grad(problem.loss, argnums=(0, 1))(problem.x0, problem.y0, record)
        return norm(x), norm(y)

    for name, values in zip("xy", jax.vmap(lengths)(records)):
        shown = ", ".join(f"{share:.0%} {np.quantile(values, share):.3g}" for share in (0.5, 0.8, 0.95))
        print(f"gradients in {name}: {shown}")


if __name__ == "__main__":
    main()
