"""Mixture of experts: hash or scored routing, clamped SwiGLU experts, one shared expert."""

import numpy as np

from .checkpoint import Checkpoint, Weight
from .formats import round_bf16
from .hyper_connection import sigmoid
from .numerics import Numerics


def route(num: Numerics, logits: np.ndarray, topk: int, scale: float, bias: np.ndarray | None = None,
          chosen: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Router logits [n, E] -> (expert indices [n, topk], weights [n, topk]). Either bias (scored) or chosen (hash) is given."""
    o, x = num.options, logits
    if o.router_bf16:
        x = round_bf16(x)
    if o.router_score == "softmax":
        e = np.exp(x - x.max(-1, keepdims=True))
        t = e / e.sum(-1, keepdims=True)
    elif o.router_score == "sigmoid":
        t = sigmoid(x)
    else:
        t = np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))
        t = t if o.router_score == "softplus" else np.sqrt(t)
    if o.router_normalise == "all":
        t = t / t.sum(1, keepdims=True)
    biased = t + bias.astype(num.dtype) if bias is not None and o.router_bias != "none" else t
    index = chosen if chosen is not None else np.argsort(-biased, 1, kind="stable")[:, :topk]
    weight = np.take_along_axis(biased if o.router_bias == "weights" else t, index, 1)
    if o.router_normalise == "selected":
        weight = weight / weight.sum(1, keepdims=True)
    return index, weight * num.dtype(o.route_scale or scale)


def swiglu(num: Numerics, gate: np.ndarray, up: np.ndarray, limit: float | None, weight: np.ndarray | None = None) -> np.ndarray:
    """weight * silu(min(gate, limit)) * clip(up, -limit, limit), rounded for w2."""
    o = num.options
    gate, up = gate.astype(num.dtype), up.astype(num.dtype)
    if limit is not None:
        up = np.clip(up, -limit, limit)
        if o.gate_clamp == "both":
            gate = np.clip(gate, -limit, limit)
        elif o.gate_clamp == "above":
            gate = np.minimum(gate, limit)
    activated = gate / (1 + np.exp(-gate))
    if limit is not None and o.gate_clamp == "after-silu":
        activated = np.minimum(activated, limit)
    h = activated * up
    return num.round(h if weight is None else weight * h)


class MoE:
    def __init__(self, num: Numerics, checkpoint: Checkpoint, scope: str):
        self.num, self.ckpt, self.config = num, checkpoint, checkpoint.config
        self.p = f"{scope}.ffn"

    def __call__(self, u: np.ndarray, ids: np.ndarray) -> np.ndarray:
        num, c = self.num, self.config
        index, weight = self.router(u, ids)
        num.record(f"{self.p}.experts", index)
        num.record(f"{self.p}.weights", weight)
        acc = np.zeros(u.shape, num.dtype)
        for expert in range(c.num_experts):
            row, column = np.nonzero(index == expert)
            if len(row):
                np.add.at(acc, row, self.expert(u[row], f"experts.{expert}", weight[row, column][:, None]))
        acc += self.expert(u, "shared_experts", None)
        return num.record(f"{self.p}.out", num.round(acc))

    def router(self, u: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        num, c, o = self.num, self.config, self.num.options
        logits = num.record(f"{self.p}.router_logits", num.product(u, self.ckpt[f"{self.p}.gate"]).astype(num.dtype))
        table = f"{self.p}.gate.tid2eid"
        hashed = table in self.ckpt
        if not hashed and not (self.p.startswith("mtp") and o.mtp_router == "hash"):
            return route(num, logits, c.experts_per_token, c.route_scale, bias=self.ckpt[f"{self.p}.gate.bias"])
        tid2eid = self.ckpt[table if hashed else "layers.0.ffn.gate.tid2eid"]
        if o.hash_dtype == "int32":
            tid2eid = np.ascontiguousarray(tid2eid).view(np.int32).reshape(-1)[:tid2eid.size].reshape(tid2eid.shape).astype(np.int64)
        key = ids if o.hash_key == "token" else np.arange(len(ids)) % c.vocab_size
        return route(num, logits, c.experts_per_token, c.route_scale, chosen=tid2eid[key])

    def expert(self, x: np.ndarray, name: str, weight: np.ndarray | None) -> np.ndarray:
        num, c, o = self.num, self.config, self.num.options
        w: dict[str, Weight] = {k: self.ckpt.weights[f"{self.p}.{name}.{k}"] for k in ("w1", "w2", "w3")}
        clamped = o.swiglu_clamp and (weight is not None or o.shared_clamp)
        before = None if o.weight_after_w2 else weight
        h = swiglu(num, num.linear(x, w["w1"]), num.linear(x, w["w3"]), c.swiglu_limit if clamped else None, before)
        y = num.linear(h, w["w2"]).astype(num.dtype)
        return num.round(y * weight) if weight is not None and o.weight_after_w2 else y
