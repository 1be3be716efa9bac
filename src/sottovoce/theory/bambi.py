"""What the convergence theorem of BAMBI asks for.

Anonymous authors, "BAMBI: vertical federated bilevel optimization with privacy-preserving and computation efficiency".
"""


def smoothing(directions: int, q: int, p: int, steps: int) -> float:
    """Return the mu of the convergence theorem, sqrt(Q) / sqrt(q p^3 K), for p parameters in x and q in y.

    >>> smoothing(directions=1, q=4, p=4, steps=100)
    0.00625
    """
    return float((directions / (q * p**3 * steps)) ** 0.5)
