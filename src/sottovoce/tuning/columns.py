"""Set what parties with columns need, from public facts: method = "auto" and the estimator take these settings.

>>> import numpy as np
>>> usual(Columns([np.ones((40, 2)), np.ones((40, 3))]))["batch"]
40
"""

from collections.abc import Mapping
from typing import Any

from sottovoce.data.columns import Columns
from sottovoce.registry import usual_over_columns as METHOD

STEPS = 30
TASK = "vertical-coefficients"  # a linear model of all parties' columns, with one tuned penalty per party

__all__ = ["METHOD", "STEPS", "TASK", "usual"]


def usual(columns: Columns) -> Mapping[str, Any]:
    """Return the fields of `METHOD` except the label gate; of the table only the numbers of rows are read."""
    return METHOD.usual(min(len(columns.upper), len(columns.lower)))
