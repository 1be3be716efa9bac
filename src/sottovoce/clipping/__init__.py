"""Add up clipped per-record gradients, at about the cost of a plain backward pass.

To clip a record's gradient means to shrink it to a chosen norm, so that no record can change a sum by more than that.
For example, with clip 1 a record whose gradient is (3, 4), of norm 5, contributes (0.6, 0.8).

| module | what it does |
|---|---|
| `bookkeeping` | `clipped_sum` and `record_norms`, the two functions that others call |
| `taps` | finds where a function of one record uses its parameters |
| `products` | describes those uses, and the factors that determine a gradient |
| `norms` | computes norms from the factors, never too small |
| `convolutions` | writes convolutions as slices and dot products |

This room knows nothing of privacy: it bounds what one record contributes, and others add noise and keep accounts.
"""

from sottovoce.clipping.bookkeeping import clipped_sum, record_norms

__all__ = ["clipped_sum", "record_norms"]
