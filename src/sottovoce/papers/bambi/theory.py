"""Compute what the convergence theory of BAMBI asks for and promises.

Anonymous authors, "BAMBI: vertical federated bilevel optimization with privacy-preserving and computation efficiency":
Lemmas 1, 2 and 7, Theorem 1, Remark 1, and the costs of Section 4.2. x has p parameters, y has q, N is the number of
lower steps, B the batch, Q the number of directions, K the number of upper steps.

>>> plain = Constants(l_f0=1.0, l_f1=1.0, l_g1=1.0, l_g2=0.0, mu_g=1.0)
>>> steps = theorem_1_steps(plain, Setting(N=1, B=1, Q=1, p=1, q=1, K=10_000))
>>> steps.alpha, steps.beta
(0.01, 0.16)
"""

import math
from dataclasses import dataclass

from sottovoce.networks import Condition
from sottovoce.papers.bound import ErrorBound


def smoothing(directions: int, q: int, p: int, steps: int) -> float:
    """Return the mu of the convergence theorem, sqrt(Q) / sqrt(q p^3 K), for p parameters in x and q in y.

    >>> smoothing(directions=1, q=4, p=4, steps=100)
    0.00625
    """
    return float((directions / (q * p**3 * steps)) ** 0.5)


def lower_samples(steps: int) -> int:
    """Return the N B at which batches leave an error of order 1 / sqrt(K): sqrt(K), rounded up.

    Remark 1 (line 164) asks for N B = O(1 / sqrt(K)), which is below 1 and so impossible. The last term of (11) is of
    order 1 / (N B), so N B must grow like sqrt(K).

    >>> lower_samples(10_000)
    100
    """
    return math.ceil(math.sqrt(steps))


@dataclass(frozen=True)
class Cost:
    """Count multiplications per upper step, up to a constant: BAMBI's, and those of second derivatives in full."""

    bambi: int
    second_order: int


def cost(N: int, B: int, Q: int, p: int, q: int) -> Cost:
    """Return Section 4.2's costs, N B Q (p + q) and B p q.

    The text compares B Q (p + q), without N, to B p q. With N, BAMBI is cheaper where N Q < p q / (p + q).

    >>> cost(N=10, B=100, Q=1, p=1000, q=1000)
    Cost(bambi=2000000, second_order=100000000)
    """
    return Cost(N * B * Q * (p + q), B * p * q)


@dataclass(frozen=True)
class Constants:
    """Hold the constants of Assumptions 1 to 3: Lipschitz constants of f, g and their derivatives, and variances.

    `l_f0` is that of f, `l_f1` of grad f, `l_g1` of grad g, `l_g2` of g's Hessian; `mu_g` is the strong convexity of g.
    `var_f`, `var_g1` and `var_g2` are the variances for one record, summed over parties.
    """

    l_f0: float
    l_f1: float
    l_g1: float
    l_g2: float
    mu_g: float
    var_f: float = 0.0
    var_g1: float = 0.0
    var_g2: float = 0.0

    def __post_init__(self) -> None:
        rest = (self.l_f0, self.l_f1, self.l_g2, self.var_f, self.var_g1, self.var_g2)
        if min(rest) < 0 or not 0 < self.mu_g <= self.l_g1:
            raise ValueError(f"{self}: constants are not negative, and 0 < mu_g <= l_g1")

    @property
    def l_y(self) -> float:
        """Return how fast y* moves with x."""
        return self.l_g1 / self.mu_g

    @property
    def l_yx(self) -> float:
        """Return how fast the Jacobian of y* moves with x (Lemma 8)."""
        bend = self.l_g2 * (1 + self.l_y)
        return bend / self.mu_g + self.l_g1 * bend / self.mu_g**2

    @property
    def l_mu(self) -> float:
        """Return the smoothness of the lower iterates as functions of x."""
        return (1 + self.l_y) * (self.l_g2 / self.mu_g + self.l_f1 * self.l_g1 / self.mu_g**2)

    @property
    def coupling(self) -> float:
        """Return l_f1^2 + 2 l_y^2 l_f1^2 + l_y^2, a sum that stands in Theorem 1's step sizes."""
        return self.l_f1**2 * (1 + 2 * self.l_y**2) + self.l_y**2


@dataclass(frozen=True)
class Setting:
    """Hold the sizes of a run; `mu` is the smoothing, 0 for its limit."""

    N: int
    B: int
    Q: int
    p: int
    q: int
    K: int
    mu: float = 0.0


@dataclass(frozen=True)
class Estimator:
    """Say how good the hypergradient estimate is: `delta2` is delta_mu^2, `sigma2` sigma-tilde^2, `C_f2` C_f^2."""

    delta2: float
    sigma2: float
    C_f2: float


def estimator(given: Constants, at: Setting) -> Estimator:
    """Return delta_mu^2, sigma-tilde^2 and C_f^2 of Lemma 1.

    >>> estimator(Constants(1.0, 1.0, 1.0, 0.0, 1.0), Setting(N=1, B=1, Q=8, p=4, q=1, K=1))
    Estimator(delta2=0.0, sigma2=16.0, C_f2=20.0)
    """
    delta2 = at.mu**2 * given.l_mu**2 * at.q * (at.p + 6) ** 2 / (2 * at.Q)
    noise = given.var_f / at.B
    directions = 12 * delta2 + 4 * (2 * at.p + 8) / at.Q * given.l_y**2
    sigma2 = 2 * noise + 2 * (given.l_f0**2 + noise) * directions + 4 * (given.l_y**2 + delta2) * noise
    return Estimator(delta2, sigma2, (given.l_f0 + given.l_y * given.l_f1) ** 2 + delta2 + sigma2)


def lemma_1_lower(given: Constants, at: Setting, beta: float, distance2: float) -> float:
    """Return (7): the bound on |y^N - y*|^2 after N lower steps of size beta, from a squared distance `distance2`.

    It holds for beta <= 1 / l_g1 (line 440 prints beta <= l_g1 / 2). Theorem 1 allows beta up to 1 / (2 mu_g), where
    descent diverges if l_g1 > 4 mu_g.

    >>> lemma_1_lower(Constants(1.0, 1.0, 1.0, 0.0, 1.0), Setting(2, 1, 1, 1, 1, 1), beta=0.5, distance2=4.0)
    1.0
    """
    return (1 - beta * given.mu_g) ** at.N * distance2 + beta * given.var_g1 / (at.B * given.mu_g)


def lemma_1_drift(
    given: Constants, at: Setting, alpha: float, distance2: float, hypergradient2: float, printed: bool = False
) -> float:
    """Return (8): the bound on |y^{k+1,0} - y*(x^{k+1})|^2, from the distance before x moved, with gamma_k of line 745.

    `hypergradient2` is the squared norm of the expected estimate; (8) prints its expectation without norm and square.
    From (49) to (52) the factor 2 of the cross term is lost, so the `printed` bound does not hold.

    >>> plain = Constants(1.0, 1.0, 1.0, 0.0, 1.0)
    >>> lemma_1_drift(plain, Setting(1, 1, 8, 4, 1, 1), alpha=0.5, distance2=1.0, hypergradient2=4.0)
    8.5
    """
    known, bend = estimator(given, at), given.l_yx * alpha**2 / (4 if printed else 2)
    moved, cross = given.l_y**2 * alpha**2, alpha / 4 if printed else alpha
    widened = 1 + given.l_y**2 * alpha + bend * known.C_f2
    return widened * distance2 + (moved + cross + bend) * hypergradient2 + (moved + bend) * known.sigma2


def lemma_2(
    given: Constants,
    at: Setting,
    alpha: float,
    gradient2: float,
    hypergradient2: float,
    distance2: float,
    jacobian2: float,
) -> float:
    """Return (9): the bound on how much F rises in an upper step.

    `gradient2` is |grad F|^2, `hypergradient2` that of the expected estimate, `distance2` is |y^N - y*|^2, `jacobian2`
    the squared error of the Jacobian of y^N. (9) prints the last term without alpha_k, which (75) has. The proof takes
    l_f1 for the smoothness of F (58), which is larger: (9) holds if `l_f1` is the smoothness of F.

    >>> plain = Constants(1.0, 1.0, 1.0, 0.0, 1.0)
    >>> lemma_2(plain, Setting(1, 1, 8, 4, 1, 1), 0.5, gradient2=1.0, hypergradient2=1.0, distance2=0.0, jacobian2=0.0)
    1.625
    """
    known = estimator(given, at)
    noise = given.l_f1 * alpha**2 / 2 * known.sigma2
    wrong = 2 * given.l_f1**2 * (1 + 2 * given.l_y**2) * distance2 + 2 * given.l_f0**2 * jacobian2
    bias = alpha * (given.l_f0**2 * known.delta2 + wrong)
    return -alpha / 2 * gradient2 - (alpha - given.l_f1 * alpha**2) / 2 * hypergradient2 + noise + bias


@dataclass(frozen=True)
class JacobianError:
    """Hold the terms of Lemma 7: |J^N - J*|^2 <= C1 |y^0 - y*|^2 + C2 + C3.

    C2 is what N steps cannot know, C3 comes from batches.
    """

    C1: float
    C2: float
    C3: float


def lemma_7(given: Constants, at: Setting, beta: float) -> JacobianError:
    """Return (43)'s C1, C2 and C3 for N lower steps of size beta.

    >>> lemma_7(Constants(1.0, 1.0, 1.0, 0.0, 1.0), Setting(2, 1, 1, 1, 1, 1), beta=0.5)
    JacobianError(C1=0.0, C2=0.25, C3=0.0)
    """
    gamma, left = (given.l_g1 + given.mu_g) / given.mu_g**2, (1 - beta * given.mu_g) ** at.N
    C_xy = beta + gamma * (1 - beta * given.mu_g) + beta * given.l_y
    both = C_xy + beta * C_xy
    batches = given.var_g2 + given.l_g2**2 * given.var_g1 * beta / given.mu_g
    return JacobianError(
        C1=2 * beta * both * given.l_g2**2 * at.N * left,
        C2=left * given.l_y**2,
        C3=2 * both * batches / (given.mu_g * at.B),
    )


@dataclass(frozen=True)
class Steps:
    """Hold Theorem 1's step sizes, the limits that they come from, and what the proof asks of them."""

    alpha: float
    beta: float
    alpha_1: float
    alpha_2: float
    alpha_3: float
    conditions: tuple[Condition, ...]


def theorem_1_steps(given: Constants, at: Setting) -> Steps:
    """Return (10)'s alpha_1, alpha_2, alpha_3 and the step sizes alpha_k and beta_k.

    alpha_2 is printed as a function of alpha_k itself. It is at least 8 alpha_k, so it never binds. The proof asks, in
    (80), for l_yx C_f^2 alpha^2 + 8 alpha S <= N beta mu_g with S = `Constants.coupling`; the printed beta_k has a 2 in
    its denominator, and fails that wherever it is not alpha_1 that rules.

    >>> steps = theorem_1_steps(Constants(1.0, 1.0, 1.0, 0.5, 1.0), Setting(N=10, B=10, Q=1, p=3, q=3, K=10_000))
    >>> [condition.name for condition in steps.conditions if not condition.holds]
    ['(80)']
    """
    known, mu = estimator(given, at), given.mu_g
    alpha_1 = mu**2 / (2 * given.l_f1 * mu**2 + 4 * given.l_g1**2 + given.l_yx * mu**2)
    spread = 1 / (2 * mu) + (given.l_g1 + mu) / (2 * mu**2) + given.l_g1 / (2 * mu)
    bent = 8 * given.l_f0**2 * given.l_g2**2 * spread * (1 + given.l_y)
    alpha_3 = mu / bent if bent else math.inf
    alpha = min(alpha_1, alpha_3, 1 / math.sqrt(at.K))
    curve = given.l_yx * known.C_f2
    beta = min((curve * alpha_1 + 8 * given.coupling) * alpha / (2 * at.N * mu), 1 / (2 * mu))
    needed = curve * alpha**2 + 8 * alpha * given.coupling
    conditions = (
        Condition("(80)", needed <= at.N * beta * mu, f"{needed:.4g} against N beta mu_g = {at.N * beta * mu:.4g}"),
        Condition("beta <= 1 / l_g1, tacit in (7)", beta <= 1 / given.l_g1, f"{beta:.4g} against {1 / given.l_g1:.4g}"),
    )
    return Steps(alpha, beta, alpha_1, needed, alpha_3, conditions)


def theorem_1_bound(given: Constants, at: Setting, start: float) -> ErrorBound:
    """Return (11): the bound on the average of |grad F|^2, with the constants of its proof, (84) and (85).

    `start` is V^0 = F(x^0) + |y^0 - y*(x^0)|^2. (11) divides the batches' term by Q as well, which (85) does not. From
    (79) to (83) the error of the Jacobian after N steps, C2 and C3 of Lemma 7, is multiplied by the variance of
    batches. So (11) goes to 0 for any N, while the estimate of the hypergradient stays wrong: C2 tends to l_y^2,
    because beta_k falls like 1 / sqrt(K). `lower_steps` says which N makes C2 small. A factor 2 in front of V^0 is
    lost, too; the start has alpha_3 where alpha_2 is printed, which is no constant.

    >>> plain = Constants(1.0, 1.0, 1.0, 0.0, 1.0)
    >>> print(theorem_1_bound(plain, Setting(N=1, B=1, Q=10_000, p=1, q=1, K=10_000), start=1.0))
    0.0108 (start 0.0106, smoothing 0, directions and batches 0.00024, lower batches 0)
    """
    known, steps, mu = estimator(given, at), theorem_1_steps(given, at), given.mu_g
    step, curve = 1 / math.sqrt(at.K), given.l_yx * known.C_f2
    lower = (curve * steps.alpha_1 + 8 * given.coupling) * given.var_g1 / (at.N * at.B * mu**2)
    error = lemma_7(given, at, steps.beta)
    first = 2 * given.l_f1**2 * (1 + 2 * given.l_y**2) + 4 * given.l_f0**2 * (error.C2 + error.C3) * given.l_g2**2 / mu
    second = 1 + given.l_y**2 + curve * steps.alpha_1**2 / 4
    return ErrorBound(
        {
            "start": start / (at.K * min(steps.alpha_1, steps.alpha_3)) + start * step,
            "smoothing": given.l_f0**2 * known.delta2,
            "directions and batches": step / 2 * (4 * given.l_y**2 + given.l_yx + 2 * given.l_f1) * known.sigma2,
            "lower batches": (step * first + second) * lower,
        }
    )


def lower_steps(given: Constants, beta: float, error: float) -> int:
    """Return the number N of lower steps of size beta for which Lemma 7's C2 is at most `error`.

    >>> lower_steps(Constants(1.0, 1.0, 1.0, 0.0, 1.0), beta=0.1, error=0.01)
    44
    """
    if not 0 < beta * given.mu_g < 1 or not error > 0:
        raise ValueError(f"beta {beta}, error {error}: give beta in (0, 1 / mu_g) and a positive error")
    return max(1, math.ceil(math.log(error / given.l_y**2) / math.log(1 - beta * given.mu_g)))
