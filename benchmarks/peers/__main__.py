"""Run the comparisons, or the ones named: ``python -m benchmarks.peers [--write] [name ...]`` (`make bench-peers`)."""

import sys

from benchmarks.__main__ import run

LIMITS = {"logistic": 240, "mlp": 300, "cnn": 400, "hypergradient": 120, "ldp_dsbo": 180, "dp_mix_sgd": 180}

if __name__ == "__main__":
    sys.exit(run(LIMITS, sys.argv[1:], "benchmarks.peers.compare {}", "{} beside others") and 1)
