"""The curve of a column in the card: it is what the model predicts, and its band is how far noise moves it."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import sottovoce as sv

COLUMNS = {"sleep": {"range": (0, 24)}, "sex": {"categories": ["F", "M"]}}


def rows(count: int = 3000) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    X = {"sleep": rng.normal(7, 1.5, count).clip(2, 12), "sex": rng.choice(["F", "M"], count)}
    return X, (2 * np.abs(X["sleep"] - 8) - 2.5 + rng.logistic(size=count) > 0).astype(int)


def fitted(seed: int) -> sv.PrivateLogisticRegression:
    model = sv.PrivateLogisticRegression(columns=COLUMNS, curves="private", classes=[0, 1], random_state=seed)
    return model.set_params(ledger=sv.Ledger()).fit(*rows())


def test_a_shape_is_how_predictions_change_along_the_column_and_travels(tmp_path) -> None:
    model = fitted(0)
    (shape,) = model.coefficients().shapes
    knots = model.declarations_["sleep"].curve
    at = np.append(shape.values, 24 * knots[16] / 1024)
    scores = model.decision_function({"sleep": at, "sex": np.repeat("F", len(at))})
    np.testing.assert_allclose(shape.effects, scores[:-1] - scores[-1], atol=1e-5)
    assert model.score(*rows()) > 0.76  # a straight line has 0.73
    opened = sv.load(sv.save(model, tmp_path / "model.sv"))
    assert opened.coefficients.shapes[0].to_dict() == shape.to_dict()
    np.testing.assert_array_equal(opened.predict(rows()[0]), model.predict(rows()[0]))
    ElementTree.fromstring((tmp_path / "model.curves.svg").read_text())
    assert "![Curves of sleep](model.curves.svg)" in (tmp_path / "model.md").read_text()


@pytest.mark.slow
def test_the_band_is_as_wide_as_noise_moves_the_shape() -> None:
    """Ranks stay the same: their own noise is not in the band."""
    knots = fitted(0).declarations_["sleep"].curve
    declared = {**COLUMNS, "sleep": {"range": (0, 24), "curve": knots}}
    made = [
        sv.PrivateLogisticRegression(4.0, columns=declared, classes=[0, 1], random_state=seed, ledger=sv.Ledger())
        .fit(*rows())
        .coefficients()
        .shapes[0]
        for seed in range(40)
    ]
    spread = np.std([one.effects for one in made], axis=0)
    errors = np.mean([one.errors for one in made], axis=0)
    far = spread > 0.3 * spread.max()
    assert 0.6 < np.median(errors[far] / spread[far]) < 2.0
