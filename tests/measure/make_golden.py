"""Writes golden/statistics.txt: right values for src/measure/statistics, from NumPy, SciPy, statsmodels and scikit-learn.

Needs: numpy, scipy, statsmodels, scikit-learn. Each line: name, arguments, result; read by statistics_test.cc.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from scipy import stats
from sklearn.metrics import brier_score_loss
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint


def numbers(values: object) -> str:
    return " ".join(repr(float(v)) for v in np.ravel(values))  # type: ignore[arg-type]


def bootstrap(values: np.ndarray, n_resamples: int, seed: int) -> tuple[float, float]:
    """The percentile bootstrap with random.Random's draws, and SciPy's own on other draws beside it as a check."""
    draw = random.Random(seed)
    means = [np.mean(values[[draw.randrange(len(values)) for _ in values]]) for _ in range(n_resamples)]
    low, high = np.percentile(means, [2.5, 97.5])
    theirs = stats.bootstrap((values,), np.mean, n_resamples=100_000, method="percentile", random_state=1).confidence_interval
    width = theirs.high - theirs.low
    assert abs(low - theirs.low) < 0.1 * width and abs(high - theirs.high) < 0.1 * width, (low, high, theirs)
    return low, high


def calibration_error(probabilities: np.ndarray, gold: np.ndarray, n_bins: int) -> float:
    """Bins (low, high], as in Guo et al. 2017; the definition written with NumPy's own digitize."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == gold
    bins = np.digitize(confidence, np.linspace(0, 1, n_bins + 1), right=True)
    return float(sum((bins == b).mean() * abs(right[bins == b].mean() - confidence[bins == b].mean()) for b in np.unique(bins)))


def main() -> None:
    rng = np.random.default_rng(7)
    lines = []
    for n, n_resamples, seed in ((12, 500, 0), (50, 2000, 0), (50, 2000, 20260925), (300, 1000, 0)):
        values = rng.choice([-1.0, 0.0, 1.0], n, p=[0.1, 0.7, 0.2]) if n != 12 else rng.normal(size=n)
        low, high = bootstrap(values, n_resamples, seed)
        lines.append(f"bootstrap {n_resamples} {seed} {n} {numbers(values)} {numbers([low, high])}")
    for first, second in ((0, 0), (0, 2), (1, 1), (3, 10), (12, 5), (40, 61), (300, 350)):
        p = mcnemar([[100, first], [second, 100]], exact=True).pvalue
        assert first + second == 0 or np.isclose(p, stats.binomtest(first, first + second).pvalue, rtol=1e-9)
        lines.append(f"mcnemar {first} {second} {numbers(min(1.0, p))}")
    for count, total in ((0, 10), (2, 50), (37, 40), (977, 1000), (40, 40)):
        lines.append(f"wilson {count} {total} {numbers(proportion_confint(count, total, method='wilson'))}")
    for percent in (0, 2.5, 50, 97.5, 100):
        values = rng.normal(size=9)
        lines.append(f"percentile {percent} 9 {numbers(values)} {numbers(np.percentile(values, percent))}")
    for n, labels in ((40, 2), (60, 4)):
        logits = rng.normal(size=(n, labels)) * 2
        probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        gold = rng.integers(labels, size=n)
        brier = brier_score_loss(gold, probabilities, labels=list(range(labels)), scale_by_half=False) if labels > 2 else \
            2 * brier_score_loss(gold, probabilities[:, 1])
        table = " ".join(f"{g} {numbers(p)}" for g, p in zip(gold, probabilities, strict=True))
        lines.append(f"forecast {n} {labels} {table} {numbers([calibration_error(probabilities, gold, 10), brier])}")
    (Path(__file__).parent / "golden/statistics.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
