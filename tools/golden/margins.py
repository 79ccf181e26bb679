"""How close a forward pass came to a tie: in the routers, in the indexers' top-k and between greedy drafts.

A golden for float32 comparison must keep clear of ties, or a correct implementation may choose differently.
"""

import numpy as np

from oracle.model import Model


def router_margins(model: Model) -> np.ndarray:
    """Gap between the last chosen and the first rejected biased score, of every row and scored layer."""
    gaps, k = [], model.config.experts_per_token
    for name, logits in model.trace.items():
        bias = name.replace(".router_logits", ".gate.bias")
        if name.endswith(".router_logits") and bias in model.ckpt and k < logits.shape[1]:
            softplus = np.where(logits > 20, logits, np.log1p(np.exp(np.minimum(logits, 20))))
            ranked = -np.sort(-(np.sqrt(softplus) + model.ckpt[bias]), 1)
            gaps.append(ranked[:, k - 1] - ranked[:, k])
    return np.concatenate(gaps) if gaps else np.zeros(0)


def indexer_margins(model: Model) -> np.ndarray:
    """The same for the indexers, over queries that see more entries than they may keep. Exact zeros on both sides do not count. A score is exactly zero in every implementation when all its dot products are negative, and ties go to the lowest index."""
    gaps, k = [], model.config.index_topk
    for name, score in model.trace.items():
        if not name.endswith(".indexer.scores"):
            continue
        for position, row in enumerate(score):
            count = (position + 1) // model.config.csa_ratio
            if count > k:
                ranked = -np.sort(-row[:count])
                if not (ranked[k - 1] == 0 and ranked[k] == 0):
                    gaps.append(ranked[k - 1] - ranked[k])
    return np.array(gaps)


def drafts(logits: np.ndarray) -> float:
    """The smallest lead of a greedy draft, which the next one is fed: logits [rows, block, vocab]."""
    best = np.partition(logits, -2, -1)[..., -2:]
    return float((best[..., 1] - best[..., 0]).min())


def smallest(model: Model) -> float:
    values = [m.min() for m in (router_margins(model), indexer_margins(model)) if m.size]
    return float(min(values)) if values else float("inf")
