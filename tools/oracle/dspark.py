"""The DSpark drafter: one pass drafts a block of tokens from the last layers' streams.

Row t of a result is drafted after token t, with token t+1 known (the anchor). Draft i of it is the distribution of token t+2+i.
The drafter sees context rows made of `main_x` alone, at their own positions up to t. The anchor stands at t+1 and the noise
tokens behind it. Sources: the reference code of the checkpoints as several engines report it; README.md says where they differ.
"""

import re

import numpy as np

from .attention import Attention, grouped_linear, sink_attention
from .hyper_connection import hc_head, sigmoid
from .model import Model, head_logits
from .numerics import F32


class BlockAttention(Attention):
    """Attention of the blocks of all t at once: u [T*k, D], block t behind the context rows 0..t."""

    def __init__(self, model: Model, scope: str, main_x: np.ndarray, size: int):
        super().__init__(model.num, model.ckpt, scope, 0)
        self.main_x, self.size = main_x, size

    def __call__(self, u: np.ndarray) -> np.ndarray:
        num, c, o, k = self.num, self.config, self.num.options, self.size
        blocks = len(u) // k
        first = 1 if o.dspark_anchor == "next" else 0
        positions = (np.arange(blocks)[:, None] + first + np.arange(k)).reshape(-1)
        queries = self.queries(num.rms_norm(self.linear(u, "wq_a"), self.weight("q_norm")), positions)
        context = num.record(f"{self.p}.context", self.window_rows(self.main_x, np.arange(len(self.main_x)))[0])
        own = self.window_rows(u, positions)[0]
        out = np.empty_like(queries)
        for t in range(blocks):
            rows = np.s_[t * k:(t + 1) * k]
            keys = np.concatenate([context[:t + 1], own[rows]])
            out[rows] = sink_attention(num, queries[rows], keys, self.mask(t), self.weight("attn_sink"), c.head_dim**-0.5)
        out = num.record(f"{self.p}.o", self.unrotate(out, positions))
        z = grouped_linear(num, out.reshape(len(u), -1), self.weight("wo_a"), c.o_groups)
        return self.linear(z, "wo_b")

    def mask(self, t: int) -> np.ndarray:
        """[k, t+1+k]: the last `sliding_window` context rows, the same for all rows of the block, and the block."""
        o, k, window = self.num.options, self.size, self.config.sliding_window
        row, context = np.arange(k)[:, None], np.arange(t + 1)[None]
        seen = np.broadcast_to(context > t - window, (k, t + 1))
        if o.dspark_window == "sliding":
            seen = context > t + 1 + row - window
        elif o.dspark_window == "one-short":
            seen = np.broadcast_to(context > t - window + 1, (k, t + 1))
        elif o.dspark_window == "one-late":
            seen = np.broadcast_to((context > t - window) & (context < max(t, 1)), (k, t + 1))
        block = {"all": np.ones((k, k), bool), "earlier": np.tri(k, dtype=bool), "none": np.eye(k, dtype=bool)}[o.dspark_block_rows]
        return np.concatenate([seen, block], 1)


class Dspark:
    def __init__(self, model: Model):
        if model.config.dspark is None:
            raise ValueError("config.json: has no dspark_block_size, so there is no DSpark drafter")
        self.model, self.num, self.ckpt, self.config = model, model.num, model.ckpt, model.config.dspark
        self.stages = 1 + max(int(m[1]) for m in (re.match(r"mtp\.(\d+)\.", name) for name in model.ckpt.weights) if m)
        self.last = f"mtp.{self.stages - 1}"

    def main_x(self, streams: list[np.ndarray]) -> np.ndarray:
        """[n, D] of the streams that Model.all_streams gives."""
        num, o = self.num, self.num.options
        shift = 1 if o.dspark_tap == "output" else 0
        taps = [streams[layer + shift].astype(num.dtype) for layer in self.config.target_layer_ids]
        taps = [num.round(x.mean(1) if o.dspark_tap_streams == "mean" else x[:, 0]) for x in taps]
        taps = taps if o.dspark_tap_order == "config" else taps[::-1]
        x = num.linear(np.concatenate(taps, 1), self.ckpt.weights["mtp.0.main_proj"])
        return num.record("main_x", num.rms_norm(x, self.ckpt["mtp.0.main_norm"]) if o.dspark_main_norm else x)

    def hidden(self, ids: np.ndarray, streams: list[np.ndarray] | None = None) -> np.ndarray:
        """[n-1, k, D] in front of the last norm."""
        k, o = self.config.block_size, self.num.options
        main_x = self.main_x(self.model.all_streams(ids) if streams is None else streams)
        block = np.full((len(ids) - 1, k), self.config.noise_token_id)
        block[:, 0] = ids[1:]
        if o.dspark_noise == "anchor":
            block[:] = ids[1:, None]
        block = block.reshape(-1)
        x = self.model.embedded(block)
        for stage in range(self.stages):
            scope = f"mtp.{stage}"
            x = self.model.block(x, block, scope, BlockAttention(self.model, scope, main_x, k))
        w, p = self.ckpt, self.last
        y = hc_head(self.num, x, w[f"{p}.hc_head_fn"], w[f"{p}.hc_head_scale"], w[f"{p}.hc_head_base"], self.model.config.hc_eps)
        return y.reshape(len(ids) - 1, k, -1)

    def __call__(self, ids: np.ndarray, teacher: bool = False, streams: list[np.ndarray] | None = None
                 ) -> tuple[np.ndarray, np.ndarray]:
        """(float32 logits [n-1, k, vocab] with the Markov term, chances of acceptance [n-1, k]).

        Each draft is fed the greedy token of the one before it; with `teacher` the token of the text (0 behind its end). `streams`
        saves the trunk's pass where they are known.
        """
        num, o, k = self.num, self.num.options, self.config.block_size
        y = self.hidden(ids, streams)
        normed = num.rms_norm(y, self.ckpt[f"{self.last}.norm"])
        w1, w2 = (self.ckpt[f"{self.last}.markov_head.markov_{name}"] for name in o.dspark_markov_tables.split(","))
        text = np.concatenate([ids, np.zeros(k, ids.dtype)])
        anchor = previous = ids[1:]
        logits, chances = [], []
        for i in range(k):
            embedded = w1[anchor if o.dspark_markov == "anchor" else previous]
            row = head_logits(num, normed[:, i], self.ckpt["head"])
            if o.dspark_markov != "none":
                row = row + num.product(embedded, w2).astype(F32)
            logits.append(row)
            source = y if o.dspark_confidence == "unnormed" else normed
            joined = np.concatenate([source[:, i], embedded], 1)
            chances.append(sigmoid(num.product(joined, self.ckpt[f"{self.last}.confidence_head.proj"]).astype(num.dtype))[:, 0])
            previous = text[2 + i:][:len(ids) - 1] if teacher else row.argmax(1)
        return np.stack(logits, 1), np.stack(chances, 1).astype(F32)
