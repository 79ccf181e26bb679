"""The lightning indexer of CSA layers: scores every compressed entry, keeps the best index_topk."""

import numpy as np

from .formats import round_bf16
from .numerics import F64, Numerics


def scores(num: Numerics, queries: np.ndarray, entries: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """score[n,k] = sum_h weights[n,h] relu(queries[n,h] . entries[k])."""
    o = num.options
    dots = np.einsum("qhd,kd->qhk", queries.astype(F64), entries.astype(F64), optimize=True)

    def relu(x):
        return np.maximum(x, 0) if o.indexer_relu else x

    if o.indexer_bf16:
        products = round_bf16(relu(round_bf16(dots)) * weights[:, :, None])
        return round_bf16(products.astype(F64).sum(1))
    return (relu(dots) * weights[:, :, None]).sum(1)


def head_weights(num: Numerics, u: np.ndarray, projection: np.ndarray, head_dim: int) -> np.ndarray:
    heads = projection.shape[0]
    raw = num.round(num.product(u, projection))
    if num.options.indexer_weights == "softmax":
        raw = np.exp(raw - raw.max(-1, keepdims=True))
        raw = raw / raw.sum(-1, keepdims=True)
    return num.round(raw * num.dtype(head_dim**-0.5 * heads**-0.5))


def select(score: np.ndarray, visible: np.ndarray, topk: int) -> np.ndarray:
    """Boolean [n, entries]: the topk best visible entries of each query, ties to the lowest index."""
    masked = np.where(visible, score, -np.inf)
    best = np.argsort(-masked, 1, kind="stable")[:, :topk]
    chosen = np.zeros_like(visible)
    np.put_along_axis(chosen, best, True, 1)
    return visible & chosen
