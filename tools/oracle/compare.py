"""Cosine per position between two logit arrays."""

import numpy as np


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[n]; rows with a NaN compare as -1, the worst cosine."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    norms = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num((a * b).sum(-1) / norms, nan=-1.0)


def summary(cos: np.ndarray) -> dict[str, float]:
    return {"median": float(np.median(cos)), "p5": float(np.percentile(cos, 5)), "min": float(cos.min())}
