"""Writes tests/golden/shared: a toy model whose layers share entries, indexer keys and choices, with the logits of a NumPy twin.

No released model has these plans: layers.json says what each layer reads, and a test gives it to the engine instead of config.json's
plans. Ratios 4 (overlapping), 8 and 16; owners, readers of all three kinds, and a layer that chooses by another's keys.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import encode  # noqa: E402
import margins  # noqa: E402
from oracle.attention import Attention  # noqa: E402
from oracle.compressor import compress  # noqa: E402
from oracle.indexer import head_weights, scores, select  # noqa: E402
from oracle.model import Model  # noqa: E402
from oracle.options import Options  # noqa: E402
from random_model import Shape, release_config, weights  # noqa: E402
from release_models import Golden, _encode  # noqa: E402

OUT = Path(__file__).resolve().parents[2] / "tests/golden/shared"
MIN_MARGIN = 2e-5
TOKENS = 200


@dataclass
class Plan:
    """Rows that a layer reads: numbers of layers, -1 for none."""

    ratio: int = 0
    overlap: int = 1
    entries: int = -1
    keys: int = -1
    selection: int = -1


PLANS = [
    Plan(),
    Plan(4, 2, 1, 1, 1),     # makes entries, keys and a choice
    Plan(4, 1, 1, -1, 1),    # uses all three
    Plan(4, 1, 1, 1, 3),     # chooses anew by the keys of layer 1
    Plan(4, 1, 1, -1, 3),
    Plan(8, 1, 5, 5, 5),     # another ratio, without overlap
    Plan(8, 1, 5, -1, 5),
    Plan(16, 1, 7),          # all entries
    Plan(16, 1, 7),
]
SHAPE = Shape([p.ratio for p in PLANS], hidden=64, q_lora=48, heads=2, head_dim=96, rope_dim=32, o_lora=40, index_heads=4, index_dim=32, index_topk=6,
              inter=32, hc_mult=2, window=24, experts=3)


class SharedAttention(Attention):
    """Attention of a layer with a plan; `rows` holds what layers made, by kind and layer."""

    def __init__(self, model: Model, layer: int, rows: dict):
        super().__init__(model.num, model.ckpt, f"layers.{layer}", PLANS[layer].ratio)
        self.layer, self.plan, self.rows = layer, PLANS[layer], rows
        self.csa = self.plan.selection >= 0  # whether `selected` narrows what is visible

    def entries(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.plan.entries == self.layer:
            made = compress(self.num, u, self._compressor("compressor"), self.ratio, self.plan.overlap == 2, self.frequencies)
            self.rows["entries", self.layer] = self.num.round_nope_fp8(made, self.config.rope_dim) if self.num.options.compressed_fp8 else made
        made = self.rows["entries", self.plan.entries]
        return made, made

    def selected(self, u, q_a, qr, positions, visible):
        num, c, o = self.num, self.config, self.num.options
        if self.plan.keys == self.layer:
            made = compress(num, u, self._compressor("indexer.compressor"), self.ratio, self.plan.overlap == 2, self.frequencies)
            self.rows["keys", self.layer] = num.indexer_row(made, o.hadamard_key, o.fp4_key)
        if self.plan.selection == self.layer:
            queries = self.linear(qr, "indexer.wq_b").reshape(len(positions), c.index_num_heads, c.index_head_dim)
            queries = num.indexer_row(num.rope(queries, positions, self.frequencies), o.hadamard_query, o.fp4_query)
            score = scores(num, queries, self.rows["keys", self.plan.keys], head_weights(num, u, self.weight("indexer.weights_proj"), c.index_head_dim))
            num.record(f"{self.p}.indexer.scores", score)
            self.rows["selection", self.layer] = select(score, visible, c.index_topk)
        return self.rows["selection", self.plan.selection]


class SharedModel(Model):
    """The oracle with plans."""

    def all_streams(self, ids: np.ndarray, max_layers: int | None = None) -> list[np.ndarray]:
        x, rows = [self.embedded(ids)], {}
        for layer in range(len(PLANS) if max_layers is None else max_layers):
            x.append(self.block(x[-1], ids, f"layers.{layer}", SharedAttention(self, layer, rows)))
        return x

    def indexer_margin(self) -> float:
        """The least gap between the last chosen and the first rejected score of a query that has to choose."""
        gaps, k = [1.0], self.config.index_topk
        for layer, plan in enumerate(PLANS):
            for position, row in enumerate(self.trace.get(f"layers.{layer}.attn.indexer.scores", [])):
                count = (position + 1) // plan.ratio
                if count > k:
                    ranked = -np.sort(-row[:count])
                    if not ranked[k - 1] == ranked[k] == 0:
                        gaps.append(ranked[k - 1] - ranked[k])
        return float(min(gaps))


def tensors(seed: int) -> dict[str, np.ndarray]:
    """Weights of a model in which every layer owns its rows, without those that readers lack and with an indexer where a plan has one."""
    out, rng, s = weights(SHAPE, seed), np.random.default_rng([seed, 1]), SHAPE

    def matrix(n, k, gain=1.0):
        return (rng.standard_normal((n, k)) * gain / np.sqrt(k)).astype(np.float32)

    for layer, plan in enumerate(PLANS):
        a = f"layers.{layer}.attn"
        for name in [name for name in out if name.startswith((f"{a}.compressor.", f"{a}.indexer."))]:
            del out[name]
        for prefix, width, owner in ((f"{a}.compressor", s.head_dim, plan.entries), (f"{a}.indexer.compressor", s.index_dim, plan.keys)):
            if owner == layer:
                rows = plan.overlap * width
                out[f"{prefix}.wkv"], out[f"{prefix}.wgate"] = matrix(rows, s.hidden), matrix(rows, s.hidden, 2.0)
                out[f"{prefix}.ape"] = rng.standard_normal((plan.ratio, rows)).astype(np.float32)
                out[f"{prefix}.norm"] = (1 + 0.2 * rng.standard_normal(width)).astype(np.float32)
        if plan.selection == layer:
            out[f"{a}.indexer.wq_b"] = matrix(s.index_heads * s.index_dim, s.q_lora)
            out[f"{a}.indexer.weights_proj"] = matrix(s.index_heads, s.hidden)
    return out


def write(seed: int) -> None:
    """config.json, layers.json and the checkpoint."""
    golden = Golden("shared", SHAPE, seed, "bf16", "bf16")
    OUT.mkdir(parents=True, exist_ok=True)
    stored = {f"{name}.{suffix}" if suffix else name: tensor
              for name, x in tensors(seed).items() for suffix, tensor in _encode(golden, name, x).items()}
    encode.write_safetensors(OUT / "model.safetensors", stored, {"format": "pt"})
    (OUT / "config.json").write_text(json.dumps(release_config(SHAPE), indent=1) + "\n")
    (OUT / "layers.json").write_text(json.dumps([asdict(plan) for plan in PLANS], indent=1) + "\n")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for seed in range(100):
        write(seed)
        ids = np.random.default_rng(seed).integers(0, SHAPE.vocab, TOKENS)
        model = SharedModel(OUT, Options.make(plain=True), trace=True)
        plain = model.forward(ids)
        if min(margins.router_margins(model).min(), model.indexer_margin()) > MIN_MARGIN:
            break
    else:
        raise RuntimeError(f"no seed out of 100 keeps {MIN_MARGIN} away from ties")
    np.save(OUT / "logits.plain.npy", plain)
    np.save(OUT / "logits.release.npy", SharedModel(OUT).forward(ids))
    (OUT / "tokens.json").write_text(json.dumps(ids.tolist()) + "\n")
    (OUT / "golden.json").write_text(json.dumps({"note": "layers that share entries, indexer keys and choices", "seed": seed}, indent=1) + "\n")
    print(f"shared seed {seed} {sum(f.stat().st_size for f in OUT.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
