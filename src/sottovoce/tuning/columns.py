"""Set what parties with columns need, from public facts: method = "auto" and the estimator take these settings.

>>> import numpy as np
>>> usual(Columns([np.ones((40, 2)), np.ones((40, 3))]))["batch"]
40
"""

from typing import Any

from sottovoce.data.columns import Columns
from sottovoce.optimisers import Adam
from sottovoce.papers.bambi.method import Bambi

STEPS = 30
TASK = "vertical-coefficients"  # a linear model of all parties' columns, with one tuned penalty per party
_BATCH = 500


def usual(columns: Columns) -> dict[str, Any]:
    """Return the fields of `Bambi` except the label gate; of the table only the numbers of rows are read."""
    batch = min(_BATCH, len(columns.upper), len(columns.lower))
    return {"inner_steps": 20, "directions": 2, "rate_x": Adam(0.1), "rate_y": Adam(0.02), "batch": batch}


def why(method: Bambi, steps: int) -> tuple[str, ...]:
    """Say in three lines why this was chosen."""
    return (
        "Bambi: parties hold columns; head outputs, gradients at them and a number per direction leave a party",
        f"{steps} steps of {method.inner_steps} inner ones: each label is drawn once, so that more cost no privacy",
        f"batches of {method.batch} rows; one coefficient per party is tuned with {method.directions} directions",
    )
