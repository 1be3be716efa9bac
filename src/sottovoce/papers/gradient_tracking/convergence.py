"""Check Theorems 1 to 4 of the paper on DP gradient tracking: what holds for given numbers.

Chen, Wang and Zhang, "Differentially private gradient-tracking-based distributed stochastic optimization over directed
graphs". `convergence` is Theorems 1 and 2 (with Assumptions 1, 5 and 6), `privacy` is Theorems 3 and 4, `trade_off` is
Corollaries 3 and 4. These are the paper's own theory, for its printed algorithm in the compact form, taken at its word;
`privacy` therefore says when the *published* budget stays finite, not that it is sound.

>>> round(s2_samples(0.02), 1)      # Theorem 2's sampled gradients for an error of 0.02, as a power of ten
7.2
"""

import math
from dataclasses import dataclass

import numpy as np

from sottovoce.networks import Condition, Network
from sottovoce.networks.checks import rooted
from sottovoce.papers.gradient_tracking.lemmas import laplacians, lemma_2, spectral_radius, spreads
from sottovoce.papers.gradient_tracking.theory import S1, PaperScheme


@dataclass(frozen=True)
class Verdict:
    """Say whether a theorem applies, and what it then promises.

    `rate` is the exponent e of an error O(K^-e) for S1, the base r of O(r^K) for S2; None for statements without one.
    `complexity` is the exponent c of the O(phi^-c) sampled gradients per agent for error phi (S2: times ln 1/phi),
    counted as steps times batch. An S1 rate that is not positive promises nothing.
    """

    findings: tuple[Condition, ...]
    rate: float | None = None
    complexity: float | None = None

    @property
    def holds(self) -> bool:
        """Say whether all conditions hold."""
        return all(finding.holds for finding in self.findings)

    @property
    def failing(self) -> tuple[str, ...]:
        """Return the names of the conditions that fail."""
        return tuple(finding.name for finding in self.findings if not finding.holds)


def convergence(scheme: PaperScheme, network: Network, *, L: float, mu: float, p_zeta: float, p_eta: float) -> Verdict:
    """Check Theorem 1 (S1) or 2 (S2): which conditions hold, the promised rate, the sampled gradients it takes.

    L is the smoothness of the agents' objectives, mu the Polyak-Lojasiewicz constant of their average; messages of x
    carry noise (k+1)^p_zeta (S1) or p_zeta^K (S2), those of y likewise with p_eta. Three findings are not in the paper.
    Its proof takes a spectral radius for a Euclidean norm, which needs a normal matrix. And in (57) it has the start
    forgotten like exp(-K^(1 - p)) with p the largest of the three exponents: at p = 1, the paper's own choice, the
    steps add up to a constant, and so does what is left of the start. A third: (45) and (47) put v_1'v_2 = n, which
    holds if one of the graphs is weight-balanced; else the average moves v_1'v_2 / n times as fast as Lemma 2 says.

    >>> from sottovoce.networks import directed
    >>> cycle = [(0, 1), (1, 2), (2, 0)]
    >>> verdict = convergence(S1(K=2000), directed(cycle, cycle), L=1.0, mu=1.0, p_zeta=0.1, p_eta=0.1)
    >>> round(verdict.rate, 2), verdict.failing
    (0.12, ('max(p_alpha, p_beta, p_gamma) < 1, tacit in (57)',))
    """
    alpha, beta, gamma = scheme.alpha, scheme.beta, scheme.gamma
    findings = [*rooted(network.pull, network.push)[:3], *_lemma_1(network, alpha, beta)]
    findings.append(_below("3 gamma L < 1", 3 * gamma * L, 1.0))
    if isinstance(scheme, S1):
        conditions = {
            "2 p_alpha - 2 p_zeta - p_beta > 0": 2 * scheme.p_alpha - 2 * p_zeta - scheme.p_beta,
            "p_beta - p_eta > 0": scheme.p_beta - p_eta,
            "2 p_gamma - p_alpha > 0": 2 * scheme.p_gamma - scheme.p_alpha,
            "2 p_gamma - p_beta > 0": 2 * scheme.p_gamma - scheme.p_beta,
        }
        theta = min(
            scheme.p_m,
            2 * scheme.p_alpha - 2 * p_zeta - scheme.p_beta,
            2 * scheme.p_beta - 2 * p_eta,
            2 * scheme.p_gamma - scheme.p_beta,
        )
        rate = theta - max(scheme.p_alpha, scheme.p_beta, scheme.p_gamma)
        conditions["theta > max(p_alpha, p_beta, p_gamma)"] = rate
        conditions["max(p_alpha, p_beta, p_gamma) < 1, tacit in (57)"] = 1 - (theta - rate)
        findings += [_above(name, value, 0.0) for name, value in conditions.items()]
        return Verdict(tuple(findings), rate, (1 + scheme.p_m) / rate if rate > 0 else math.inf)
    radius = spectral_radius(lemma_2(network, alpha, beta, gamma, L, mu))
    findings += [
        *(Condition(f"0 < {name} < 1", 0 < p < 1, f"is {p:g}") for name, p in (("p_zeta", p_zeta), ("p_eta", p_eta))),
        _above("p_m > 1", scheme.p_m, 1.0),
        _below("spectral radius of Lemma 2's matrix < 1", radius, 1.0),
    ]
    base = max(radius, 1 / scheme.p_m, p_zeta**2, p_eta**2)
    return Verdict(tuple(findings), base, math.log(scheme.p_m) / -math.log(base) if base < 1 else math.inf)


def privacy(
    scheme: PaperScheme, network: Network, *, p_zeta: float, p_eta: float, records: int | None = None
) -> Verdict:
    """Check Theorem 3 (S1) or 4 (S2): when the *published* budget stays finite as K grows, for every agent.

    The theorems ask 0 < a_1 sum_j R_ij < 1 with S1's constant a_1 itself (not alpha), and a positive row sum of the
    agent concerned: a root that hears nobody is not covered. `records` is the number of records of the
    smallest agent: a batch that grows with K fits only up to some K.

    >>> from sottovoce.networks import directed
    >>> cycle = [(0, 1), (1, 2), (2, 0)]
    >>> privacy(S1(K=2000), directed(cycle, cycle), p_zeta=0.1, p_eta=0.1, records=12_000).failing
    ('0 < a_1 sum_j R_ij < 1 for every agent',)
    """
    pulled, pushed = (np.asarray(matrix.sum(axis=1)).reshape(-1) for matrix in (network.pull, network.push))
    names = ("a_1", "a_2") if isinstance(scheme, S1) else ("alpha", "beta")
    steps = (scheme.a1, scheme.a2) if isinstance(scheme, S1) else (scheme.alpha, scheme.beta)
    findings = [
        *rooted(network.pull, network.push)[:3],
        _inside(f"0 < {names[0]} sum_j R_ij < 1 for every agent", steps[0] * pulled),
        _inside(f"0 < {names[1]} sum_j C_ij < 1 for every agent", steps[1] * pushed),
    ]
    if isinstance(scheme, S1):
        drift = min(0.0, scheme.p_gamma - scheme.p_alpha - scheme.p_beta)
        conditions = {
            "p_m - p_beta - max(0, 1 - p_eta) > 0": scheme.p_m - scheme.p_beta - max(0.0, 1 - p_eta),
            "p_m + min(0, p_gamma - p_alpha - p_beta) - max(0, 1 - p_zeta) > 0": (
                scheme.p_m + drift - max(0.0, 1 - p_zeta)
            ),
        }
        findings += [_above(name, value, 0.0) for name, value in conditions.items()]
    else:
        findings.append(_below("1 / p_m < min(p_zeta, p_eta)", 1 / scheme.p_m, min(p_zeta, p_eta)))
    if records is not None:
        detail = f"m is {scheme.batch} of {records} at K = {scheme.K}; it fits up to K = {_last(scheme, records)}"
        findings.append(Condition("m different records exist", scheme.batch <= records, detail))
    return Verdict(tuple(findings))


def trade_off(
    scheme: PaperScheme,
    network: Network,
    *,
    L: float,
    mu: float,
    p_zeta: float,
    p_eta: float,
    records: int | None = None,
) -> Verdict:
    """Check Corollaries 3 and 4: convergence and a finite published budget, both at once, with the promised rate.

    Remark 13 says that smaller noise gives a smaller epsilon. It is the other way round: the budget of Lemmas 4 and 5
    is a sum of sensitivities over noise. Corollary 4 lets the batch grow without bound; with `records` given, the
    finding says up to which K it fits.

    >>> from sottovoce.networks import directed
    >>> cycle = [(0, 1), (1, 2), (2, 0)]
    >>> scheme = S1(K=2000, a1=0.5, p_alpha=0.9, p_beta=0.6, p_gamma=0.9)
    >>> both = trade_off(scheme, directed(cycle, cycle), L=0.1, mu=0.1, p_zeta=0.05, p_eta=0.05)
    >>> both.holds, round(both.rate, 2)
    (True, 0.2)
    """
    converges = convergence(scheme, network, L=L, mu=mu, p_zeta=p_zeta, p_eta=p_eta)
    stays = privacy(scheme, network, p_zeta=p_zeta, p_eta=p_eta, records=records)
    new = [finding for finding in stays.findings if finding not in converges.findings]
    return Verdict((*converges.findings, *new), converges.rate, converges.complexity)


def s2_samples(phi: float, base: float | None = None) -> float:
    """Return Theorem 2's oracle complexity of S2 for an error phi, as a power of ten.

    Theorem 2 takes step sizes phi, batches phi^-K and noise phi^K. It prints O(-phi^(ln phi) ln phi), which is
    N phi^-N for N = -ln phi iterations. That N is right if the error shrinks by a factor 1/e per step. With `base`, the
    factor r by which it does shrink (`convergence(...).rate`), N is ln phi / ln r, as in (70). r is at least
    1 - mu gamma = 1 - mu phi, so N grows like 1 / phi, and the printed exponent has no constant that repairs it.

    >>> round(s2_samples(0.02, base=1 - 0.02))
    331
    """
    if not 0 < phi < 1 or not (base is None or 0 < base < 1):
        raise ValueError(f"phi {phi}, base {base}: give numbers between 0 and 1")
    N = -math.log(phi) if base is None else math.log(phi) / math.log(base)
    return math.log10(N) - N * math.log10(phi)


def _last(scheme: PaperScheme, records: int) -> int:
    """Return the largest K at which the batch still fits."""
    if isinstance(scheme, S1):
        return math.ceil((records / scheme.a4) ** (1 / scheme.p_m)) - 1 if scheme.p_m > 0 else scheme.K
    return math.ceil(math.log(records) / math.log(scheme.p_m)) - 1 if scheme.p_m > 1 else scheme.K


def _lemma_1(network: Network, alpha: float, beta: float) -> list[Condition]:
    findings = []
    for name, step, laplacian in zip(("alpha L1", "beta L2"), (alpha, beta), laplacians(network)):
        largest = float(step * laplacian.diagonal().max())
        findings.append(
            Condition(f"I - {name} is nonnegative", largest <= 1, f"largest row or column sum {largest:.4g}")
        )
    for what, step, spread in zip(("pull", "push"), (alpha, beta), spreads(network, alpha, beta)):
        findings.append(
            Condition(
                f"{what}: disagreement shrinks in the Euclidean norm as its spectral radius says",
                spread.norm <= 1 - step * spread.rate + 1e-9,
                f"norm {spread.norm:.6g}, spectral radius {1 - step * spread.rate:.6g}",
            )
        )
    pull, push = spreads(network, alpha, beta)
    moves = float(pull.weights @ push.weights) / network.size
    tacit = "v_1'v_2 = n, tacit in (45) and (47)"
    findings.append(Condition(tacit, abs(moves - 1) < 1e-6, f"the average moves {moves:.4g} times as fast"))
    return findings


def _below(name: str, value: float, bound: float) -> Condition:
    return Condition(name, value < bound, f"{value:.6g} against {bound:.6g}")


def _above(name: str, value: float, bound: float) -> Condition:
    return Condition(name, value > bound + 1e-12, f"{value:.6g} against {bound:.6g}")


def _inside(name: str, values: np.ndarray) -> Condition:
    outside = np.flatnonzero((values <= 0) | (values >= 1)).tolist()
    detail = f"outside for agents {outside}: {[round(float(values[i]), 4) for i in outside]}" if outside else "holds"
    return Condition(name, not outside, detail)
