"""The whole model: token ids of one sequence to float32 logits at every position."""

from collections.abc import Callable

import numpy as np

from .attention import Attention
from .checkpoint import Checkpoint
from .formats import round_bf16
from .hyper_connection import hc_head, hc_post, hc_pre
from .moe import MoE
from .numerics import F32, Numerics
from .options import Options


def head_logits(num: Numerics, z: np.ndarray, head: np.ndarray) -> np.ndarray:
    logits = num.product(z, head)
    return (round_bf16(logits) if num.options.logits == "bf16" else logits).astype(F32)


class Model:
    def __init__(self, directory, options: Options | None = None, trace: bool = False):
        options = options or Options.make()
        self.ckpt = Checkpoint(directory, options)
        self.config = self.ckpt.config
        self.num = Numerics(options, self.config.norm_eps, {} if trace else None)

    @property
    def trace(self) -> dict[str, np.ndarray]:
        """Intermediates of the last forward pass by name, if asked for."""
        return self.num.trace or {}

    def forward(self, ids: np.ndarray, max_layers: int | None = None) -> np.ndarray:
        """float32 logits [len(ids), vocab]."""
        return self._head(self.streams(ids, max_layers), "")

    def streams(self, ids: np.ndarray, max_layers: int | None = None) -> np.ndarray:
        """Residual streams [n, H, D] after the last layer."""
        return self.all_streams(ids, max_layers)[-1]

    def all_streams(self, ids: np.ndarray, max_layers: int | None = None) -> list[np.ndarray]:
        """Residual streams [n, H, D]: the embedding's, then those after each layer."""
        c = self.config
        x = [self.embedded(ids)]
        for layer in range(c.num_layers if max_layers is None else max_layers):
            scope = f"layers.{layer}"
            x.append(self.block(x[-1], ids, scope, Attention(self.num, self.ckpt, scope, c.ratios[layer])))
        return x

    def embedded(self, ids: np.ndarray) -> np.ndarray:
        return np.repeat(self.ckpt["embed"][ids][:, None, :], self.config.hc_mult, 1).astype(self.num.dtype)

    def mtp(self, ids: np.ndarray) -> np.ndarray:
        """float32 draft logits [len(ids)-1, vocab]: streams at p joined with the embedding of token p+1 predict token p+2."""
        attention = Attention(self.num, self.ckpt, "mtp.0", 0)
        x = self.block(self._joined(self.streams(ids)[:-1], ids[1:]), ids[1:], "mtp.0", attention)
        return self._head(x, "mtp.0.")

    def drafts(self, ids: np.ndarray, count: int) -> np.ndarray:
        """float32 draft logits [len(ids)-1, count, vocab]: row t is drafted behind token t with token t+1, greedily. Each draft after the first
        combines the block's own streams of the one before with the token drafted there. It sees the slots of the text and those of its own row."""
        slots = self._joined(self.streams(ids)[:-1], ids[1:])
        attention = Attention(self.num, self.ckpt, "mtp.0", 0)
        out = []
        for t in range(len(slots)):
            rows = slots[max(0, t - self.config.sliding_window):t + 1]
            logits = []
            for _ in range(count):
                streams = self.block(rows, np.zeros(len(rows), np.int64), "mtp.0", attention)[-1:]
                logits.append(self._head(streams, "mtp.0."))
                rows = np.concatenate([rows, self._joined(streams, logits[-1].argmax(-1))])
            out.append(np.concatenate(logits))
        return np.stack(out)

    def _joined(self, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Input of the draft block's layer: streams [n, H, D], each with the token that follows."""
        num, w, p = self.num, self.ckpt, "mtp.0"
        if num.options.mtp_input == "hc_head":
            collapsed = hc_head(num, x, w["hc_head_fn"], w["hc_head_scale"], w["hc_head_base"], self.config.hc_eps)
            x = np.repeat(collapsed[:, None], self.config.hc_mult, 1)
        embedded = num.rms_norm(w["embed"][ids], w[f"{p}.enorm"])
        e = num.linear(embedded, w.weights[f"{p}.e_proj"])
        h = num.linear(num.rms_norm(x, w[f"{p}.hnorm"]), w.weights[f"{p}.h_proj"])
        return num.round(e[:, None] + h)

    def block(self, x: np.ndarray, ids: np.ndarray, scope: str, attention: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Attention and experts, each between its hyper-connection's two halves."""
        num, w = self.num, self.ckpt
        moe = MoE(num, w, scope)
        for name, layer in (("attn", attention), ("ffn", lambda u: moe(u, ids))):
            u, post, comb = hc_pre(num, x, w[f"{scope}.hc_{name}_fn"], w[f"{scope}.hc_{name}_scale"],
                                   w[f"{scope}.hc_{name}_base"], self.config.hc_sinkhorn_iters, self.config.hc_eps)
            u = num.record(f"{scope}.{name}.in", num.rms_norm(u, w[f"{scope}.{name}_norm"]))
            x = num.record(f"{scope}.{name}.streams", hc_post(num, layer(u), x, post, comb))
        return x

    def _head(self, x: np.ndarray, scope: str) -> np.ndarray:
        num, w = self.num, self.ckpt
        y = hc_head(num, x, w[f"{scope}hc_head_fn"], w[f"{scope}hc_head_scale"], w[f"{scope}hc_head_base"], self.config.hc_eps)
        z = num.rms_norm(y, w[f"{scope}norm"]) if num.options.head_input == "normed" else y
        return head_logits(num, num.record(f"{scope}head.in", z), w["head"])
