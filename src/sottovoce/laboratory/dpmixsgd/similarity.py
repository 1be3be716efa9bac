"""Measure how much a guessed picture looks like the true one.

Pictures have values in [0, 1]; guesses are clipped to that range.
"""

import math
from functools import partial

import numpy as np
from scipy.ndimage import uniform_filter
from scipy.optimize import linear_sum_assignment

_TINY = 1e-12


def psnr(truth: np.ndarray, guess: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in decibels, for pictures in [0, 1].

    >>> round(psnr(np.zeros((2, 2)), np.full((2, 2), 0.1)), 6)
    20.0
    """
    error = float(np.mean((truth - np.clip(guess, 0, 1)) ** 2))
    return 10 * math.log10(1 / max(error, _TINY))


def ssim(truth: np.ndarray, guess: np.ndarray) -> float:
    """Return the structural similarity (Wang et al., 2004) of two pictures in [0, 1], in 7 x 7 windows: 1 if equal.

    >>> ssim(np.eye(8), np.eye(8))
    1.0
    """
    a, b = np.asarray(truth, float), np.clip(np.asarray(guess, float), 0, 1)
    average = partial(uniform_filter, size=7)
    mean_a, mean_b = average(a), average(b)
    var_a, var_b, cov = average(a * a) - mean_a**2, average(b * b) - mean_b**2, average(a * b) - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2
    value = (2 * mean_a * mean_b + c1) * (2 * cov + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    return float(np.mean(value))


def matched(truth: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Return the guesses in the order that fits the truth best, because an attack does not know a batch's order.

    >>> truth = np.arange(8.0).reshape(2, 2, 2) / 8
    >>> np.array_equal(matched(truth, truth[::-1]), truth)
    True
    """
    apart = ((truth[:, None] - np.clip(guess, 0, 1)[None]) ** 2).sum(axis=(2, 3))
    return guess[linear_sum_assignment(apart)[1]]


def scores(truth: np.ndarray, guess: np.ndarray) -> tuple[float, float]:
    """Return the median SSIM and PSNR over all pictures (agents, records, height, width).

    >>> [round(value) for value in scores(np.zeros((1, 1, 8, 8)), np.zeros((1, 1, 8, 8)))]
    [1, 120]
    """
    pairs = [(t, g) for ts, gs in zip(truth, guess) for t, g in zip(ts, gs)]
    return float(np.median([ssim(t, g) for t, g in pairs])), float(np.median([psnr(t, g) for t, g in pairs]))
