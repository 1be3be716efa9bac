import math

import jax
import numpy as np
import pytest

from sottovoce import data
from sottovoce.laboratory.dpmixsgd import leakage, similarity
from sottovoce.privacy import sound


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Small pictures, one an agent, their labels, and the mean picture."""
    train, test = data.load("digits")
    return (
        test["features"].reshape(-1, 1, 8, 8)[:6],
        test["label"][:6, None],
        train["features"].mean(axis=0).reshape(8, 8),
    )


class TestClearMessages:
    @pytest.mark.slow
    def test_are_inverted(self, digits):
        truth, labels, _ = digits
        case = leakage.attack("clear", truth, labels, math.inf, 0.0, steps=120)
        assert case.epsilon == math.inf
        assert case.labels_right == 1.0
        assert case.scores["DLG"][0] > 0.9
        assert case.scores["cosine + TV"][0] > 0.9

    @pytest.mark.slow
    def test_are_the_gradients_of_the_records(self, digits):
        truth, labels, _ = digits
        seen = leakage.messages(truth, labels, math.inf, 0.0)
        problem = leakage._problem((8, 8))
        for i in range(len(truth)):
            record = {"features": truth[i].reshape(-1), "label": labels[i, 0]}
            wanted = jax.grad(problem.loss)(problem.x0, problem.y0, record)
            for got, right in zip(jax.tree.leaves(seen.g), jax.tree.leaves(wanted)):
                np.testing.assert_allclose(got[i], right, atol=1e-5)


class TestReleasedMessages:
    @pytest.mark.slow
    def test_are_not(self, digits):
        truth, labels, middle = digits
        case = leakage.attack("released", truth, labels, 1.0, leakage.noise_for(8.0, 1.0), steps=30)
        blind = similarity.scores(truth, np.broadcast_to(middle, truth.shape))
        assert case.epsilon == pytest.approx(8.0, abs=1e-4)
        for ssim, psnr in case.scores.values():
            assert ssim < blind[0]
            assert psnr < blind[1]

    @pytest.mark.slow
    def test_noise_has_the_scale_it_says(self, digits):
        truth, labels, _ = digits
        clean, noisy = (leakage.messages(truth, labels, 1.0, noise) for noise in (0.0, 0.5))
        drawn = np.concatenate(
            [np.ravel(a - b) for a, b in zip(jax.tree.leaves((noisy.g, noisy.h)), jax.tree.leaves((clean.g, clean.h)))]
        )
        assert np.std(drawn) == pytest.approx(0.5, rel=0.03)

    def test_epsilon_is_that_of_two_gaussian_messages(self):
        sigma, clip = leakage.noise_for(8.0, clip=0.5), 0.5
        mu = math.sqrt(2) * 2 * clip / sigma  # replace-one, g and h
        assert float(sound.gdp_epsilon(mu, leakage.DELTA)) == pytest.approx(8.0, abs=1e-6)


class TestMeasures:
    def test_ssim_of_flat_pictures(self):
        """Without variance only the luminance term is left."""
        a, b = np.full((9, 9), 0.5), np.full((9, 9), 0.7)
        assert similarity.ssim(a, b) == pytest.approx((2 * 0.35 + 1e-4) / (0.25 + 0.49 + 1e-4))

    def test_a_batch_is_matched_in_the_best_order(self):
        truth = np.random.default_rng(0).uniform(size=(5, 4, 4))
        order = np.array([3, 1, 4, 0, 2])
        np.testing.assert_array_equal(similarity.matched(truth, truth[order]), truth)


@pytest.mark.slow
def test_main_prints_and_draws(tmp_path, capsys):
    cases = leakage.main(tmp_path, dataset="digits", count=2, noises=(), batch=3, steps=3)
    assert (tmp_path / "dlg-digits.png").stat().st_size > 0
    assert "mean image" in capsys.readouterr().out
    assert [case.name for case in cases][-1] == "clip 1, noise 1, batch 3"


@pytest.mark.data
@pytest.mark.slow
def test_mnist_digits_are_recovered_from_clear_gradients_only():
    train, test = data.load("mnist")
    truth, labels = test["features"].reshape(-1, 1, 28, 28)[:20], test["label"][:20, None]
    blind = similarity.scores(truth, np.broadcast_to(train["features"].mean(axis=0).reshape(28, 28), truth.shape))
    clear = leakage.attack("clear", truth, labels, math.inf, 0.0)
    released = leakage.attack("released", truth, labels, 1.0, leakage.noise_for(8.0, 1.0))
    assert clear.scores["DLG"][0] > 0.9
    assert all(ssim <= blind[0] and psnr <= blind[1] for ssim, psnr in released.scores.values())
