"""An audit must stay below a true claim, come near it on the worst case, and break a false one."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy import auditing as reference
from scipy import stats
from tests.marks import few

import sottovoce as sv
from sottovoce.accounting.trace import trace
from sottovoce.audit import adversaries, audit, audit_labels, bounds
from sottovoce.audit.adversaries import Target
from sottovoce.audit.observer import Observer, Watch
from sottovoce.laboratory.sound_designs import designs
from sottovoce.papers.dp_bilevel.method import Descent
from sottovoce.privacy import discrete, gate
from sottovoce.privacy.labels import Fresh, Memoised, Open, Printed
from sottovoce.privacy.sampling import FixedSize, Full, OnePass, Poisson, Stream, WithReplacement
from sottovoce.registry import over_columns
from sottovoce.runtime import array
from sottovoce.runtime.array import ArrayAnswers, Spec
from sottovoce.runtime.interpreter import play, walk
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out

DELTA = 1e-2  # large, so that a few thousand trials have power

# Bounds.


def test_limits_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    for p, n in [(0.5, 40), (0.02, 300), (0.97, 100)]:
        low, high = bounds.limits(rng.binomial(n, p, size=4000), n, 0.05)
        for wrong in (np.mean(low > p), np.mean(high < p)):
            assert wrong <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_a_true_epsilon_is_seldom_exceeded_and_nearly_reached(delta):
    """Randomised response with a leak of probability delta: epsilon is exactly 1."""
    rng, found = np.random.default_rng(1), []
    for _ in range(200):
        sides = []
        for truth in (1.0, -1.0):
            said = np.where(rng.random(1500) < math.e / (1 + math.e), truth, -truth)
            sides.append(np.where(rng.random(1500) < delta, 9 * truth, said))
        found.append(bounds.halves(*sides, delta=delta, confidence=0.9))
    assert np.mean(np.array(found) > 1.0) <= 0.1 + 0.06
    assert np.median(found) > 0.6


def test_events_in_both_directions_are_tried():
    """D' has an outcome that D never shows: only low scores give it away."""
    rng = np.random.default_rng(0)
    d, other = rng.normal(size=4000), np.where(rng.random(4000) < 0.1, -50.0, rng.normal(size=4000))
    assert not bounds.choose(d, other, 0.0).above
    assert bounds.halves(d, other, 0.0, 0.95) > 3


@pytest.mark.slow
def test_one_run_bound_holds_and_has_power():
    """Independent randomised response of every canary: epsilon is exactly 2."""
    rng, found = np.random.default_rng(2), []
    for _ in range(100):
        coins = rng.random(600) < 0.5
        said = np.where(rng.random(600) < math.e**2 / (1 + math.e**2), coins, ~coins)
        found.append(bounds.one_run_bound(said + 1e-9 * rng.random(600), coins, delta=0.0, confidence=0.9))
    assert np.mean(np.array(found) > 2.0) <= 0.1 + 0.1
    assert np.median(found) > 1.3


# (canaries, guesses, right guesses, delta): epsilon at a risk of .05, by jax-privacy 2.0.0 beside jax 0.10.2
REFERENCE = {
    (1000, 100, 95, 0.0): 2.172434,
    (1000, 100, 95, 1e-5): 2.165176,
    (1000, 100, 95, 1e-3): 0.594314,
    (1000, 20, 20, 1e-5): 1.791284,
    (1000, 20, 20, 1e-3): 0.0,
    (400, 40, 31, 1e-3): 0.004677,
    (5000, 2500, 1700, 1e-5): 0.681999,
    (5000, 2500, 1700, 1e-3): 0.488349,
    (50, 10, 9, 1e-3): 0.284963,
}


@pytest.mark.parametrize(("case", "epsilon"), REFERENCE.items())
def test_one_run_epsilon_is_that_of_jax_privacy(case, epsilon):
    *counts, delta = case
    assert bounds._one_run_epsilon(*counts, delta, 0.05) == pytest.approx(epsilon, abs=2e-6)


def test_one_run_epsilon_beside_jax_privacy_itself():
    """One threshold, all guesses "in"."""
    rng = np.random.default_rng(0)
    for delta in (1e-6, 1e-4):
        coins = rng.random(2000) < 0.5
        scores = coins + rng.laplace(0, 0.5, 2000)
        auditor = reference.CanaryScoreAuditor(scores[coins], scores[~coins])
        theirs = auditor.epsilon_one_run(0.05, delta, threshold_strategy=reference.Explicit(1.5))
        guessed = scores >= 1.5
        ours = bounds._one_run_epsilon(2000, int(guessed.sum()), int(coins[guessed].sum()), delta, 0.05)
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_one_run_bound_pays_for_delta():
    coins = np.arange(400) % 2 == 0
    free, paid = (bounds.one_run_bound(coins.astype(float), coins, delta, 0.95) for delta in (0.0, 1e-3))
    assert 0 < paid < free


# The observer.

SIZES = {"records": np.array([6])}


def observed(method, instance, data, t=0, seed=5):
    """One step of one agent: what it computes watched and unwatched, and the observer's scores."""
    traced = trace(method, instance.problem, instance.known(sv.networks.single(), 3))
    spec = Spec(traced, 64)

    def both(index):
        def own(records):
            return {level: sealed.of(index) for level, sealed in records.items()}

        def lived(wrap):
            state, scores = [], []
            for closed, phase, now in ((traced.init, "init", 0), (traced.step, "step", t)):
                now = jnp.int32(now)
                answer = wrap(ArrayAnswers(spec, array.moment(spec, index, phase, now, own(data), root_key(seed))))
                given = [index] if phase == "init" else [index, now, *state]
                state = play(walk(closed.jaxpr, closed.consts, given, compiled=False), answer)
                scores.append(answer.settled() if isinstance(answer, Observer) else 0.0)
            return traced.state(state), sum(scores)

        hypotheses = own(instance.under_d), own(instance.under_other)
        watched, ratio = lived(lambda answer: Observer(answer, Watch("records", 0, hypotheses)))
        return (watched, lived(lambda answer: answer)[0]), ratio

    return jax.jit(jax.vmap(both))(jnp.arange(1))


@pytest.mark.slow
def test_watching_changes_no_bit():
    release = sv.Release(1.0, 0.5)
    method = sv.methods.DpBilevel(0.1, Descent(2, 0.5), release, release, Poisson(3), release_x=release)
    instance = adversaries.worst_case(method, SIZES, Target(), "zero-out")
    with jax.disable_jit():  # compiled, the two programs may round differently
        (watched, plain), _ = observed(method, instance, instance.under_d)
    for a, b in zip(jax.tree.leaves(watched), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mechanism", few(["gaussian", "laplace"], ["gaussian"]))
@pytest.mark.parametrize(
    "sampling",
    few([Full(), Poisson(3), FixedSize(3), WithReplacement(3), Stream(), OnePass(2)], [WithReplacement(3)]),
)
def test_the_ratio_is_the_one_of_the_densities(mechanism, sampling):
    """One release of one agent, by SciPy: noise around 0, or around the clip over the denominator, or a mixture."""
    release = sv.Release(2.0, 0.7, mechanism)
    method = sv.methods.DpSgd(rate=1.0, gradient=release, sampling=sampling)
    instance = adversaries.worst_case(method, SIZES, Target(), "zero-out")
    (_, plain), ratio = observed(method, instance, instance.under_other)
    seen = -float(plain.x[0, 0])  # rate 1, from zero
    law = (stats.norm if mechanism == "gaussian" else stats.laplace)(scale=0.7)
    n, m = 6, sampling.denominator(6, 0)
    count = stats.binom(sampling.batch, 1 / n) if isinstance(sampling, WithReplacement) else stats.bernoulli(m / n)
    draws = {k: count.pmf(k) for k in range(4)} if sampling.amplifies else {1: 1.0}
    share = 2.0 * (1 - 1e-5) / m
    under_d = sum(weight * law.pdf(seen - k * share) for k, weight in draws.items())
    assert float(ratio[0, 0]) == pytest.approx(math.log(under_d / law.pdf(seen)), abs=2e-4)


@pytest.mark.slow
def test_releases_that_share_a_batch_share_its_coin():
    """x and y of one batch: the mixture is over both together, not over each."""
    method = sv.methods.DpSgda(0.1, 0.1, Poisson(3), release_x=sv.Release(1.0, 0.2), release_y=sv.Release(1.0, 0.2))
    instance = adversaries.worst_case(method, SIZES, Target(), "zero-out")
    draws = np.asarray(
        adversaries.scores(instance, method, sv.networks.single(), 1)(jnp.arange(4000), instance.under_d)
    )[:, 0]
    rng = np.random.default_rng(0)
    present = rng.random((200_000, 1)) < 0.5
    seen = present / 3 + 0.2 * rng.normal(size=(200_000, 2))
    gains = np.sum(seen / 3 - 1 / 18, axis=1) / 0.04
    together = np.log(0.5 + 0.5 * np.exp(gains))
    assert stats.ks_2samp(draws, together[:20_000]).pvalue > 1e-3
    apart = np.sum(np.log(0.5 + 0.5 * np.exp((seen / 3 - 1 / 18) / 0.04)), axis=1)
    assert stats.ks_2samp(draws, apart).pvalue < 1e-6


# Every sound design.


def configured(name: str, sampling):
    """A sound design with clips and noise to be calibrated, and its network."""
    yardstick = sv.methods.DpSgd(0.1, sv.Release(1.0, 1.0), sampling), sv.networks.ring(2)
    return {"DpSgd": yardstick, **designs(sampling)}[name]


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("DpSgd", Full()),
        pytest.param("LdpDsbo", Poisson(4), marks=pytest.mark.slow),
        pytest.param("DpGradientTracking", Poisson(4), marks=pytest.mark.slow),
        pytest.param("DpMixSgd", Poisson(4), marks=pytest.mark.slow),
        pytest.param("DpBilevel", Full(), marks=pytest.mark.slow),
    ],
)
def test_sound_designs_hold_and_their_accounts_are_tight(name, sampling):
    method, network = configured(name, sampling)
    setting = {"data": sv.Population([8, 8]), "steps": 3, "network": network, "delta": DELTA}
    method = sv.calibrate(method, epsilon=3.0, **setting)
    finding = audit(method, trials=8000, confidence=0.999, **setting)
    assert finding.passed, str(finding)
    assert finding.ratio >= 0.5, f"an audit without power: {finding}"


@pytest.mark.slow
def test_the_papers_own_noise_is_audited_too():
    """LDP-DSBO with Laplace noise on a stream, pure epsilon: the first record pays in every round."""
    method = sv.methods.LdpDsbo.paper(
        step=(0.05, 0.05, 0.02), v=(0.66, 0.64, 0.43), sigma=0.6, s=(0.65, 0.63, 0.42), clip=1.0
    )
    setting = {"data": sv.Population([4, 4]), "steps": 4, "network": sv.networks.ring(2), "delta": 0.0}
    finding = audit(method, trials=20_000, **setting)
    assert finding.passed
    assert finding.ratio > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Full(), Poisson(4)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("name", sorted(set(sv.methods.available) - set(over_columns)))
def test_every_registered_sound_design(name, sampling):
    for example in sv.methods.available[name].examples().values():
        method = example.map_releases(lambda r: dataclasses.replace(sv.Release(1.0, 0.3), name=r.name))
        fields = {f.name for f in dataclasses.fields(method) if isinstance(getattr(method, f.name), Full)}
        method = dataclasses.replace(method, **dict.fromkeys(fields, sampling))
        _, network = configured("DpGradientTracking" if "pull" in method.over else "DpSgd", sampling)
        setting = {"data": sv.Population([8, 8]), "steps": 3, "network": network, "delta": DELTA}
        if sv.account(method, **setting).design == "sound":
            finding = audit(sv.calibrate(method, epsilon=3.0, **setting), trials=8000, confidence=0.999, **setting)
            assert finding.passed, str(finding)
            assert finding.ratio >= 0.5, str(finding)


# What it must catch, and what it must refuse.

SGD = {"data": sv.Population([8]), "steps": 3, "delta": DELTA}


def sgd():
    return sv.calibrate(sv.methods.DpSgd(0.1, sv.Release(1.0, 1.0), Full()), epsilon=3.0, **SGD)


def test_noise_that_is_too_low_is_found_out(monkeypatch):
    honest = gate.noised
    monkeypatch.setattr(gate, "noised", lambda mean, release, *rest: honest(mean, release.louder(0.5), *rest))
    assert not audit(sgd(), trials=8000, **SGD).passed


def test_noise_that_is_missing_is_found_out(monkeypatch):
    """One of two variables goes out bare: the likelihood under the stated noise hardly notices, the distance does."""
    honest = gate.noised
    monkeypatch.setattr(
        gate, "noised", lambda mean, r, *rest: mean if r.name == "release_y" else honest(mean, r, *rest)
    )
    method = sv.methods.DpSgda(0.1, 0.1, Poisson(4), release_x=sv.Release(1.0, 1.0), release_y=sv.Release(1.0, 1.0))
    finding = audit(sv.calibrate(method, epsilon=3.0, **SGD), trials=8000, **SGD)
    assert finding.lower > 5


def test_a_clip_without_effect_is_found_out(monkeypatch):
    honest = gate.clipped_mean

    def unclipped(*args):
        *rest, release, chunk = args
        return honest(*rest, dataclasses.replace(release, clip=2 * release.clip), chunk)

    monkeypatch.setattr(gate, "clipped_mean", unclipped)
    assert not audit(sgd(), trials=8000, **SGD).passed


@pytest.mark.slow
def test_a_false_claim_ends_the_audit_early():
    finding = audit(sgd(), claimed=0.5, trials=16_000, **SGD)
    assert not finding.passed
    assert finding.trials < 2 * 16_000
    assert "FALSE" in str(finding)


@pytest.mark.slow
def test_replay_finds_no_more_in_usual_data_than_the_canary_does():
    rng = np.random.default_rng(0)
    records = [rng.normal(size=(8, 2)).astype(np.float32)]
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2))
    method = sgd()
    own = {"problem": problem, "row": 3, "replacement": jnp.zeros(2), "steps": 3, "delta": DELTA}
    usual = audit(method, records, adversary="replay", trials=8000, **own)
    assert usual.lower < audit(method, trials=8000, **SGD).lower
    assert usual.passed


@pytest.mark.parametrize("level", [pytest.param("upper", marks=pytest.mark.slow), "lower"])
@pytest.mark.slow
def test_two_levels_are_audited_each(level):
    setting = {"data": sv.Population([sv.data.Levels(8, 8, disjoint=True)]), "steps": 3, "delta": DELTA}
    method = sv.calibrate(configured("DpBilevel", Full())[0], epsilon=3.0, **setting)
    finding = audit(method, level=level, trials=8000, **setting)
    assert finding.passed
    assert finding.lower > (1.4 if level == "lower" else 0.3)  # the upper level is in fewer releases, and pays less


@pytest.mark.slow
def test_one_run_with_many_canaries():
    setting = {"data": sv.Population([600]), "steps": 2, "delta": 1e-5, "adjacency": "zero-out"}
    method = sv.calibrate(sv.methods.DpSgd(0.1, sv.Release(1.0, 1.0), Full()), epsilon=8.0, **setting)
    finding = audit(method, adversary="one-run", **setting)
    assert finding.passed
    assert finding.lower > 1.5
    assert not audit(method, adversary="one-run", claimed=1.0, **setting).passed


@pytest.mark.slow
def test_repetitions_share_the_risk_and_the_largest_counts():
    finding = audit(sgd(), trials=1000, repeat=3, confidence=0.97, **SGD)
    assert len(set(finding.each)) == 3
    assert finding.lower == max(finding.each)
    assert finding.trials == 3 * 2000
    assert finding.each[0] == audit(sgd(), trials=1000, confidence=0.99, **SGD).lower


# Agents on threads.


@pytest.mark.slow
def test_on_threads_the_scores_are_those_of_the_vectorised_run():
    method = sv.methods.DpSgd(0.1, sv.Release(1.0, 0.2), Poisson(3))
    instance = adversaries.worst_case(method, {"records": np.array([6, 6])}, Target(agent=1), "zero-out")
    network, seeds = sv.networks.ring(2), jnp.arange(2)
    together = adversaries.scores(instance, method, network, 2)(seeds, instance.under_d)
    apart = adversaries.thread_scores(instance, method, network, 2, "simulated")(seeds, instance.under_d)
    np.testing.assert_allclose(apart, together, atol=2e-3)


ONE_RUN = {"data": sv.Population([600]), "steps": 1, "delta": 1e-5, "adversary": "one-run", "adjacency": "zero-out"}


def one_run():
    setting = {name: ONE_RUN[name] for name in ("data", "steps", "delta", "adjacency")}
    method = sv.calibrate(sv.methods.DpSgd(0.1, sv.Release(1.0, 1.0), Full()), epsilon=3.0, **setting)
    return audit(method, runtime="threads", noise="discrete", **ONE_RUN)


def test_deployed_noise_is_audited_in_one_run():
    finding = one_run()
    assert finding.passed
    assert finding.lower > 0.05
    assert finding.what == "DpSgd on threads, discrete noise"


def test_deployed_noise_that_is_too_low_is_found_out(monkeypatch):
    honest = discrete.on_grid
    monkeypatch.setattr(discrete, "on_grid", lambda *args, **options: quieter(honest(*args, **options)))
    assert not one_run().passed


def quieter(grid):
    return dataclasses.replace(grid, scale=grid.scale // 6)


@pytest.mark.slow
def test_few_runs_on_threads_are_an_audit_too():
    """Two hypotheses far apart: even a hundred runs a side tell."""
    method = sv.methods.DpSgd(0.1, sv.Release(1.0, 0.1), Full())
    options = {
        "runtime": "threads",
        "noise": "discrete",
        "trials": 100,
        "data": sv.Population([1]),
        "steps": 1,
        "delta": DELTA,
    }
    finding = audit(method, adjacency="zero-out", **options)
    assert finding.passed
    assert finding.lower > 2
    assert not audit(method, adjacency="zero-out", claimed=1.0, **options).passed


def test_label_gates():
    for gate_, uses in [(Memoised(1.0), 50), (Fresh(2.0), 2), (Fresh(2.0, shared=True), 2)]:
        finding = audit_labels(gate_, classes=3, uses=uses, copies=1, trials=8000)
        assert finding.passed
        assert finding.ratio > 0.6
    assert not audit_labels(Printed(1.0), classes=3, trials=2000).passed
    assert not audit_labels(Printed(1.0), classes=2, uses=20, trials=2000).passed
    with pytest.raises(ValueError, match="no claim"):
        audit_labels(Open(), classes=3)


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(ValueError, match="no claim to audit"):
        audit(sv.methods.DpSgd(0.1, sv.Release.open(), Full()), **SGD)
    with pytest.raises(TypeError, match=r"give sv\.Population"):
        audit(sgd(), [8], steps=3)
    with pytest.raises(ValueError, match="problem= and the parties' parts"):
        audit(sgd(), adversary="replay", **SGD)
    with pytest.raises(ValueError, match="runtime='threads'"):
        audit(sgd(), noise="discrete", **SGD)
    with pytest.raises(ValueError, match="choose 'vectorised' or 'threads'"):
        audit(sgd(), runtime="cloud", **SGD)
    with pytest.raises(ValueError, match="'zero-out'"):
        audit(sgd(), adversary="one-run", adjacency="replace-one", **SGD)
    layout = lay_out([np.zeros((4, 1), np.float32)])
    with pytest.raises(ValueError, match="replacement="):
        adversaries.neighbours(None, layout, Target(), "replace-one")
    printed = dataclasses.replace(
        sv.methods.DpMixSgd(0.1, 0.1, Full(), release_x=sv.Release(1.0, 1.0), release_y=sv.Release(1.0, 1.0)),
        design="printed",
    )
    with pytest.raises(ValueError, match="private state"):
        audit(printed, **SGD)
