"""Compute the exact privacy curve of un-sampled Gaussian releases (Gaussian differential privacy, GDP).

A mechanism is mu-GDP when telling two neighbouring data sets apart is no easier than telling N(0, 1) from N(mu, 1).
Gaussian releases compose exactly: mu^2 = sum_t (sensitivity_t / std_t)^2. For example, 16 releases whose noise is 4
times their sensitivity are together 1-GDP, which is (4.377, 1e-5)-differentially private:

>>> round(gdp_epsilon(math.sqrt(16 / 4**2), 1e-5), 3)
4.377

Why by hand: dp-accounting 0.6.0 has `get_epsilon_gaussian`, and the tests compare with it. It is not used because

- for very little noise (mu = 1e12) its epsilon is below mu^2 / 2, where delta is above 1/2: it is not a valid bound;
- for much noise (mu = 1e-6) the delta of its epsilon is off by a relative 1e-7, because its search is too coarse;
- it has no function from epsilon to delta, which audits and tests need;
- it takes about 60 times as long, and calibration calls it inside a search.
"""

import math


def gdp_delta(mu: float, eps: float) -> float:
    """Return the smallest delta for which a mu-GDP mechanism is (eps, delta)-differentially private.

    The difference Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) is computed in a form that does not cancel: with
    a = eps/mu - mu/2 and b = eps/mu + mu/2 both terms share the factor exp(-a^2/2), because a^2 + 2 eps = b^2.

    >>> round(gdp_delta(1.0, 0.0), 9)
    0.382924923
    """
    _check_mu(mu)
    if eps < 0:
        raise ValueError(f"epsilon is {eps}: give a number >= 0")
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    from scipy.special import erfcx, log_ndtr

    a, b = eps / mu - mu / 2, eps / mu + mu / 2
    if a > 0:  # both terms are tails of the normal law: erfcx is such a tail without its exponential factor
        return 0.5 * math.exp(-a * a / 2) * float(erfcx(a / math.sqrt(2)) - erfcx(b / math.sqrt(2)))
    first, second = float(log_ndtr(-a)), eps + float(log_ndtr(-b))
    return math.exp(first) * -math.expm1(second - first)


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which a mu-GDP mechanism is (epsilon, delta)-differentially private.

    It is infinite at delta <= 0: a Gaussian release has no pure guarantee, however small mu is.

    >>> round(gdp_epsilon(1.0, 1e-5), 6)
    4.377178
    >>> gdp_epsilon(0.3, 0.0)
    inf
    """
    _check_mu(mu)
    if mu == 0:
        return 0.0
    if delta <= 0 or math.isinf(mu):
        return math.inf
    if delta >= gdp_delta(mu, 0.0):
        return 0.0
    # Phi(-a) >= delta(eps) bounds epsilon from above; its Chernoff bound is explicit
    upper = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1e-12
    if upper > 1e6:  # beyond that the curve cancels to 0 in floating point; the explicit bound is sound
        return upper
    target = math.log(delta)

    def excess(eps: float) -> float:
        return math.log(max(gdp_delta(mu, eps), 1e-320)) - target

    from scipy.optimize import brentq

    return float(brentq(excess, 0.0, upper, xtol=1e-14 * max(1.0, upper), rtol=1e-14))


def gdp_mu(eps: float, delta: float) -> float:
    """Return the largest mu for which a mu-GDP mechanism is (eps, delta)-differentially private.

    >>> round(gdp_mu(4.377178, 1e-5), 6)
    1.0
    """
    if not (eps > 0 and 0 < delta < 1):
        raise ValueError(f"epsilon is {eps} and delta {delta}: both must be positive, and delta below 1")
    from scipy.optimize import brentq

    top = 1.0
    while gdp_epsilon(top, delta) < eps:
        top *= 2
    return float(brentq(lambda mu: gdp_epsilon(mu, delta) - eps, 0.0, top, xtol=1e-12 * top))


def _check_mu(mu: float) -> None:
    if not mu >= 0:
        raise ValueError(f"mu is {mu}: give a number >= 0 (sensitivity over noise, summed in squares)")
