"""Writes shared-input vectors of single ops: tests/golden/ops/<op>.safetensors.

Tensors are named <case>/<operand>; bf16 operands are stored as BF16, codes and scales as the bytes a checkpoint has. Scalars are in
the file's metadata, one JSON object per case. Outputs carry the release's rounding points. See tests/golden/README.md.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import encode  # noqa: E402
from oracle import formats  # noqa: E402
from oracle.attention import grouped_linear, sink_attention  # noqa: E402
from oracle.checkpoint import Decoder, Weight  # noqa: E402
from oracle.compressor import CompressorWeights, compress, pool  # noqa: E402
from oracle.config import yarn_frequencies  # noqa: E402
from oracle.hyper_connection import hc_head, hc_post, hc_pre  # noqa: E402
from oracle.indexer import head_weights, scores, select  # noqa: E402
from oracle.model import head_logits  # noqa: E402
from oracle.moe import route, swiglu  # noqa: E402
from oracle.numerics import Numerics  # noqa: E402
from oracle.options import Options  # noqa: E402
from random_model import Shape  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SEED = 20
PLAIN_FREQUENCIES = 10000.0 ** (-2 * np.arange(32) / 64)


YARN = Shape([0]).yarn
YARN_FREQUENCIES = yarn_frequencies(64, 160000.0, YARN)


class OpFile:
    """Collects the cases of one op."""

    def __init__(self, name: str):
        self.name, self.tensors, self.cases = name, {}, {}

    def add(self, case: str, scalars: dict | None = None, **operands) -> None:
        """An operand is a float array (stored as bf16 if every value is one, else F32), an integer array, or an encoded tensor."""
        self.cases[case] = scalars or {}
        for name, value in operands.items():
            self.tensors[f"{case}/{name}"] = value if isinstance(value, tuple) else self._store(value)

    @staticmethod
    def _store(x: np.ndarray) -> encode.Tensor:
        if x.dtype.kind in "iu":
            return "I64", x.astype(np.int64)
        raise TypeError("wrap float operands in b16() or f32()")

    def write(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        encode.write_safetensors(directory / f"{self.name}.safetensors", self.tensors, {"cases": json.dumps(self.cases)})


def b16(x: np.ndarray) -> encode.Tensor:
    x = np.asarray(x, np.float32)
    if not np.array_equal(formats.round_bf16(x), x):
        raise ValueError("operand is not on the bf16 grid")
    return "BF16", (x.view(np.uint32) >> 16).astype(np.uint16)


def f32(x: np.ndarray) -> encode.Tensor:
    return "F32", np.asarray(x, np.float32)


def _listed(chosen: np.ndarray, width: int) -> np.ndarray:
    """Boolean rows to [n, width] ascending indices, -1 after the last."""
    listed = np.full((len(chosen), width), -1)
    for i, row in enumerate(chosen):
        index = np.flatnonzero(row)
        listed[i, :len(index)] = index
    return listed


class Vectors:
    """One method per op file, each with a generator seeded by its name, so that a new case changes one file."""

    def __init__(self, options: Options | None = None):
        self.num = Numerics(options or Options.make())

    def make(self, method: str) -> list[OpFile]:
        self.rng = np.random.default_rng([SEED, *method.encode()])
        made = getattr(self, method)()
        return made if isinstance(made, list) else [made]

    def rand(self, *shape, std=1.0) -> np.ndarray:
        """bf16-grid normal values as float32."""
        return formats.round_bf16((self.rng.standard_normal(shape) * std).astype(np.float32))

    def rows(self, *shape) -> np.ndarray:
        """Rows of very different magnitude, one of them zero."""
        x = self.rand(*shape)
        scale = np.exp2(self.rng.integers(-12, 13, shape[0])).astype(np.float32)
        scale[0] = 0
        return formats.round_bf16(x * scale.reshape(-1, *[1] * (len(shape) - 1)))

    def rms_norm(self) -> OpFile:
        f = OpFile("rms_norm")
        for case, x in (("ordinary", self.rand(6, 256)), ("magnitudes", self.rows(6, 256)), ("odd_width", self.rand(3, 72))):
            w = self.rand(x.shape[-1]) + 1
            w = formats.round_bf16(w)
            f.add(case, {"eps": 1e-6}, x=b16(x), weight=b16(w), y=b16(self.num.rms_norm(x, w)))
        return f

    def head_norm(self) -> OpFile:
        f = OpFile("head_norm")
        relaxed = Numerics(Options.make(query_norm_bf16=False))
        for case, x in (("ordinary", self.rand(5, 3, 128, std=3.0)), ("magnitudes", self.rows(6, 2, 512))):
            f.add(case, {"eps": 1e-6}, x=b16(x), y=b16(self.num.head_norm(x)), y_fp32_statistics=b16(relaxed.head_norm(x)))
        return f

    def rope(self) -> OpFile:
        f = OpFile("rope")
        positions = np.array([0, 1, 5, 127, 128, 4095, 65535, 65536, 123457, 999999, 1000000, 1048575])
        for table, frequencies in (("plain", PLAIN_FREQUENCIES), ("yarn", YARN_FREQUENCIES)):
            for direction in ("forward", "inverse"):
                x = self.rand(len(positions), 2, 128)
                y = self.num.rope(x, positions, frequencies, inverse=direction == "inverse")
                cos, sin = self.num.cos_sin(positions, frequencies)
                scalars = {"rope_dim": 64, "inverse": direction == "inverse", "theta": 10000 if table == "plain" else 160000,
                           "yarn": None if table == "plain" else YARN}
                f.add(f"{table}_{direction}", scalars, x=b16(x), positions=positions, frequencies=f32(frequencies), cos=f32(cos),
                      sin=f32(sin), y=b16(y))
        return f

    def quantise_fp8(self) -> OpFile:
        """Codes and scales of activations; groups of 128."""
        f = OpFile("quantise_fp8")
        edges = np.zeros((6, 128), np.float32)
        edges[1, 3] = 1e-5             # below the floor of amax
        edges[2, 0] = 448.0            # scale exactly one, no rounding up
        edges[3, 0] = 449.0 if formats.round_bf16(np.float32(449)) == 449 else 450.0
        edges[4, :] = self.rand(128)
        edges[4, 7] = 3.0e4            # one huge neighbour
        edges[5, :] = np.float32(2.0**-9)
        for case, x in (("ordinary", self.rand(5, 384)), ("magnitudes", self.rows(8, 256)), ("edges", formats.round_bf16(edges))):
            values = formats.quantise_fp8(x, 128)
            groups = np.abs(x).reshape(len(x), -1, 128).max(-1)
            scale = formats.ceil_power_of_two(np.maximum(groups, np.float32(1e-4)) * formats.RECIPROCAL_448)
            codes = encode.to_bytes(values / np.repeat(scale, 128, 1), encode.E4M3_BYTE, 0x80)
            f.add(case, {"group": 128}, x=b16(x), codes=("F8_E4M3", codes), scale=("F8_E8M0", (np.log2(scale) + 127).astype(np.uint8)),
                  y=b16(values))
        return f

    def kv_row(self) -> OpFile:
        """FP8 rounding of the leading dims of a window row or compressed entry, groups of 64; the last rope_dim stay."""
        f = OpFile("kv_row")
        uneven = formats.round_bf16(self.rand(6, 512) * np.exp2(self.rng.uniform(-14, 4, (6, 512))).astype(np.float32))
        for case, x in (("release_width", self.rand(5, 512)), ("magnitudes", self.rows(6, 512)), ("uneven", uneven),
                        ("toy_width", self.rand(4, 128))):
            f.add(case, {"group": 64, "rope_dim": 64}, x=b16(x), y=b16(self.num.window_row(x, 64)))
        return f

    def indexer_row(self) -> OpFile:
        f, o = OpFile("indexer_row"), self.num.options
        for case, x in (("release_width", self.rand(6, 128)), ("magnitudes", self.rows(7, 128)), ("toy_width", self.rand(5, 64))):
            f.add(case, {"group": 32}, x=b16(x), hadamard=b16(self.num.indexer_row(x, o.hadamard_key, False)),
                  y=b16(self.num.indexer_row(x, o.hadamard_key, True)), y_without_hadamard=b16(self.num.indexer_row(x, False, True)))
        return f

    @staticmethod
    def _decoded(parts: dict, block: tuple[int, int] = (128, 128)) -> Weight:
        return Decoder(Options.make(), block).decode("weight", parts)

    def linears(self) -> list[OpFile]:
        """y = round(x W^T); FP8 activations (groups of 128) in front of FP8 and MXFP4, bf16 ones in front of NVFP4 and bf16."""
        out = []
        for kind, variants in (
                ("fp8", {"ue8m0_128": lambda w: encode.fp8_block(w), "float_64": lambda w: encode.fp8_block(w, (64, 64), "float32")}),
                ("mxfp4", {"block_32": encode.mxfp4}),
                ("nvfp4", {"modelopt": lambda w: encode.nvfp4(w), "tensor_scale_one": lambda w: encode.nvfp4(w, tensor_scale=np.float32(1)),
                           "compressed_tensors": lambda w: encode.nvfp4(w, "compressed-tensors")}),
                ("bf16", {"plain": encode.bf16})):
            f = OpFile(f"linear_{kind}")
            for case, encoder in variants.items():
                n, k = 72 if case == "float_64" else 144, 256
                w = (self.rng.standard_normal((n, k)) * np.exp2(self.rng.integers(-3, 4, (n, 1)))).astype(np.float32)
                parts = encoder(w)
                block = (64, 64) if case == "float_64" else (128, 128)
                weight = self._decoded(parts, block)
                x = self.rows(5, k)
                f.add(case, {"block": list(block)} if kind == "fp8" else {}, x=b16(x), y=b16(self.num.linear(x, weight)), **parts)
            out.append(f)
        f = OpFile("linear_f32")
        x, w = self.rand(4, 160), self.rand(24, 160)
        f.add("plain", x=b16(x), weight=b16(w), y=f32(self.num.product(x, w)))
        out.append(f)
        return out

    def linear_fine(self) -> list[OpFile]:
        """V4.1: FP8 in blocks of 32 x 32 and MXFP4, activations in groups of 32, with outliers beside which groups of 128 lose their neighbours."""
        out = []
        for kind, encoder in (("fp8", lambda w: encode.fp8_block(w, (32, 32))), ("mxfp4", encode.mxfp4)):
            f = OpFile(f"linear_{kind}_32")
            w = (self.rng.standard_normal((80, 256)) * np.exp2(self.rng.integers(-3, 4, (80, 1)))).astype(np.float32)
            parts = encoder(w)
            weight = self._decoded(parts, (32, 32))
            x = self.rows(6, 256)
            for row in range(1, 6):
                x[row, 40 * row:40 * row + 1] = formats.round_bf16(np.abs(x[row]).max() * np.float32(40000))
            y = formats.round_bf16(formats.quantise_fp8(x, 32).astype(np.float64) @ weight.values.astype(np.float64).T)
            f.add("outliers", {"block": [32, 32]} if kind == "fp8" else {}, x=b16(x), y=b16(y), **parts)
            out.append(f)
        return out

    def engram(self) -> OpFile:
        """V4.1: n-gram value into the streams. mixed: keys of the streams, then the value."""
        f = OpFile("engram")
        for case, n, h, d in (("four_streams", 6, 4, 160), ("odd_width", 3, 3, 33)):
            s, mixed = self.rand(n, h, d, std=3.0), self.rand(n, (h + 1) * d)
            q, k = self.rand(h, d), self.rand(h, d)
            is_image = (np.arange(n) % 4 == 2).astype(np.int32)
            wide, keys = s.astype(np.float64), mixed[:, :h * d].reshape(n, h, d).astype(np.float64)
            norm = np.sqrt((wide**2).mean(-1) + 1e-20) * np.sqrt((keys**2).mean(-1) + 1e-20)
            dot = (wide * q * k * keys).sum(-1) / norm * d**-0.5
            gate = 1 / (1 + np.exp(-np.copysign(np.sqrt(np.maximum(np.abs(dot), 1e-6)), dot)))
            gate[is_image != 0] = 0
            f.add(case, {"eps": 1e-20}, streams=b16(s), mixed=b16(mixed), q_weight=b16(q), k_weight=b16(k), is_image=is_image,
                  out=b16(formats.round_bf16((wide + gate[:, :, None] * mixed[:, None, h * d:]).astype(np.float32))))
        return f

    def grouped_linear(self) -> OpFile:
        f = OpFile("grouped_linear")
        x, w = self.rand(5, 4 * 96), self.rand(4 * 40, 96)
        stored = encode.fp8_block(w)
        weight = self._decoded(stored)
        f.add("fp8_weight", {"groups": 4}, x=b16(x), y=b16(grouped_linear(self.num, x, weight.values, 4)), **stored)
        f.add("bf16_weight", {"groups": 4}, x=b16(x), weight=b16(w), y=b16(grouped_linear(self.num, x, w, 4)))
        return f

    def hyper_connection(self) -> OpFile:
        f = OpFile("hyper_connection")
        for case, (iters, eps) in (("release", (20, 1e-6)), ("few_steps_large_eps", (3, 1e-2))):
            n, h, d = 5, 4, 64
            x, y = self.rand(n, h, d, std=2.0), self.rand(n, d)
            fn, head_fn = (self.rng.standard_normal((m, h * d)).astype(np.float32) / 16 for m in (24, 4))
            scale, base = self.rng.random(3).astype(np.float32) * 2, self.rng.standard_normal(24).astype(np.float32)
            u, post, comb = hc_pre(self.num, x, fn, scale, base, iters, eps)
            head = hc_head(self.num, x, head_fn, scale[:1], base[:4], eps)
            f.add(case, {"iterations": iters, "hc_eps": eps, "norm_eps": 1e-6}, streams=b16(x), fn=f32(fn), scale=f32(scale),
                  base=f32(base), u=b16(u), post=f32(post), comb=f32(comb), sublayer_out=b16(y),
                  new_streams=b16(hc_post(self.num, y, x, post, comb)), head_fn=f32(head_fn), head_scale=f32(scale[:1]),
                  head_base=f32(base[:4]), head_out=b16(head))
        return f

    def compressor(self) -> OpFile:
        """From a normalised layer input u to finished entries. pooled: before the norm, rounded; rotated: after norm and RoPE."""
        f = OpFile("compressor")
        for case, ratio, n, d, kind in (("csa_main", 4, 23, 128, "main"), ("csa_indexer", 4, 23, 64, "indexer"), ("hca_main", 128, 257, 128, "main")):
            c, width = (2 if ratio == 4 else 1), 32
            u, wkv, wgate = self.rand(n, width), self.rand(c * d, width, std=0.2), self.rand(c * d, width, std=0.4)
            ape, norm = self.rng.standard_normal((ratio, c * d)).astype(np.float32), formats.round_bf16(self.rand(d) * 0.2 + 1)
            a, b = self.num.product(u, wkv).astype(np.float32), self.num.product(u, wgate).astype(np.float32)
            pooled = self.num.round(pool(self.num, a, b + ape[np.arange(n) % ratio], ratio, ratio == 4))
            rotated = compress(self.num, u, CompressorWeights(wkv, wgate, ape, norm), ratio, ratio == 4, YARN_FREQUENCIES)
            entries = self.num.window_row(rotated, 64) if kind == "main" else self.num.indexer_row(rotated, True, True)
            f.add(case, {"ratio": ratio, "rope_dim": 64, "kind": kind, "eps": 1e-6}, u=b16(u), wkv=b16(wkv), wgate=b16(wgate), ape=f32(ape),
                  values=f32(a), scores=f32(b),
                  norm=b16(norm), frequencies=f32(YARN_FREQUENCIES), pooled=b16(pooled), rotated=b16(rotated), entries=b16(entries))
        return f

    def indexer(self) -> OpFile:
        """Consecutive queries from first_position on; the one at p sees floor((p+1)/ratio) entries. scores: each stage rounded to
        bf16; selected: ascending indices of the chosen entries, -1 after them."""
        f = OpFile("indexer")
        relaxed = Numerics(Options.make(indexer_bf16=False))
        for case, first, n, topk in (("from_the_start", 0, 45, 7), ("later", 141, 20, 12)):
            h, d, ratio = 8, 64, 4
            total = (first + n) // ratio
            q = self.num.indexer_row(self.rand(n, h, d), True, True)
            k = self.num.indexer_row(self.rand(total, d), True, True)
            k[8] = k[5]  # equal scores: the lower index wins
            u, projection = self.rand(n, 64), self.rand(h, 64, std=0.3)
            w = head_weights(self.num, u, projection, d)
            visible = np.arange(total)[None] < ((first + np.arange(n) + 1) // ratio)[:, None]
            operands = {}
            for suffix, num in (("", self.num), ("_fp32", relaxed)):
                score = scores(num, q, k, w)
                operands |= {f"scores{suffix}": f32(score), f"selected{suffix}": _listed(select(score, visible, topk), topk)}
            f.add(case, {"topk": topk, "head_dim": d, "ratio": ratio, "first_position": first}, u=b16(u), weights_proj=b16(projection),
                  weights=b16(w), q=b16(q), entries=b16(k), **operands)
        return f

    def attention(self) -> OpFile:
        """Consecutive queries from first_position on. window_rows holds the positions from max(0, first_position - window + 1) to the
        last query's; entries are the compressed ones, selected (where given) the indices each query may see, -1 for none."""
        f = OpFile("attention")
        for case, first, n, window, ratio, topk, sink_level in (
                ("from_the_start", 0, 9, 4, 0, 0, 0), ("window", 100, 6, 16, 0, 0, 0), ("window_and_entries", 61, 9, 12, 4, 0, 0),
                ("selected", 61, 9, 12, 4, 5, 0), ("large_sink", 30, 4, 8, 4, 0, 6)):
            h, d = 4, 128
            begin = max(0, first - window + 1)
            positions, rows = np.arange(first, first + n), np.arange(begin, first + n)
            q, keys = self.rand(n, h, d, std=2.0), self.rand(len(rows), d)
            sink = self.rng.standard_normal(h).astype(np.float32) + sink_level
            mask = (rows[None] <= positions[:, None]) & (rows[None] > positions[:, None] - window)
            operands = {"window_rows": b16(keys)}
            if ratio:
                entries = self.rand((first + n) // ratio, d)
                visible = np.arange(len(entries))[None] < ((positions + 1) // ratio)[:, None]
                if topk:
                    visible = select(self.rng.random(visible.shape), visible, topk)
                    operands["selected"] = _listed(visible, topk)
                operands["entries"] = b16(entries)
                keys, mask = np.concatenate([keys, entries]), np.concatenate([mask, visible], 1)
            f.add(case, {"scale": d**-0.5, "first_position": first, "window": window, "ratio": ratio}, q=b16(q), sink=f32(sink),
                  o=b16(sink_attention(self.num, q, keys, mask, sink, d**-0.5)), **operands)
        return f

    def routed_experts(self) -> OpFile:
        """The sum over each token's experts, in ascending order of expert, in float32; the routing weight applied before w2."""
        f = OpFile("routed_experts")
        n, d, inter, experts, topk, limit = 7, 128, 128, 3, 2, 1.5
        x = self.rand(n, d)
        index = np.stack([self.rng.permutation(experts)[:topk] for _ in range(n)])
        weight = self.rng.random((n, topk)).astype(np.float32)
        stored, y = {}, np.zeros((n, d), np.float32)
        for e in range(experts):
            w = {}
            for name, shape in (("w1", (inter, d)), ("w3", (inter, d)), ("w2", (d, inter))):
                parts = encode.mxfp4((self.rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32))
                stored |= {f"experts.{e}.{name}.{k}": v for k, v in parts.items()}
                w[name] = self._decoded(parts)
            row, column = np.nonzero(index == e)
            g = weight[row, column][:, None]
            h = swiglu(self.num, self.num.linear(x[row], w["w1"]), self.num.linear(x[row], w["w3"]), limit, g)
            y[row] += self.num.linear(h, w["w2"])
        f.add("mxfp4", {"limit": limit, "num_experts": experts}, x=b16(x), indices=index, weights=f32(weight), y=f32(y), **stored)
        return f

    def router(self) -> OpFile:
        f = OpFile("router")
        n, d, experts, k, vocab = 12, 96, 10, 3, 30
        u, gate = self.rand(n, d), self.rand(experts, d, std=0.6)
        gate[7], bias = gate[2], self.rng.standard_normal(experts).astype(np.float32)
        bias[7] = bias[2]  # a tie
        logits = self.num.product(u, gate).astype(np.float32)
        index, weight = route(self.num, logits, k, 2.5, bias=bias)
        f.add("scored", {"topk": k, "route_scale": 2.5}, u=b16(u), gate=b16(gate), bias=f32(bias), logits=f32(logits), experts=index,
              weights=f32(weight))
        ids = self.rng.integers(0, vocab, n)
        table = np.stack([self.rng.permutation(experts)[:k] for _ in range(vocab)])
        index, weight = route(self.num, logits, k, 1.5, chosen=table[ids])
        f.add("hash", {"topk": k, "route_scale": 1.5}, u=b16(u), gate=b16(gate), tid2eid=table, token_ids=ids, logits=f32(logits),
              experts=index, weights=f32(weight))
        return f

    def swiglu(self) -> OpFile:
        f = OpFile("swiglu")
        gate, up = self.rand(6, 96, std=8.0), self.rand(6, 96, std=8.0)
        weight = self.rng.random((6, 1)).astype(np.float32) * 2
        f.add("routed", {"limit": 10.0}, gate=b16(gate), up=b16(up), weight=f32(weight), h=b16(swiglu(self.num, gate, up, 10.0, weight)))
        f.add("shared", {"limit": 10.0}, gate=b16(gate), up=b16(up), h=b16(swiglu(self.num, gate, up, 10.0)))
        f.add("unclamped", {"limit": None}, gate=b16(gate), up=b16(up), h=b16(swiglu(self.num, gate, up, None)))
        return f

    def combine(self) -> OpFile:
        """Routed outputs summed in the order given (float32), then the shared one."""
        f = OpFile("combine")
        routed, shared = self.rand(5, 6, 80), self.rand(5, 80)
        acc = np.zeros((5, 80), np.float32)
        for i in range(6):
            acc += routed[:, i]
        f.add("six", routed=b16(routed), routed_sum=f32(acc), shared=b16(shared), y=b16(self.num.round(acc + shared)))
        return f

    def head(self) -> OpFile:
        f = OpFile("head")
        z, w = self.rand(4, 256), self.rand(50, 256)
        f.add("plain", z=b16(z), weight=b16(w), logits=f32(head_logits(self.num, z, w)))
        return f


OPS = ("rms_norm", "head_norm", "rope", "quantise_fp8", "kv_row", "indexer_row", "linears", "linear_fine", "grouped_linear", "hyper_connection",
       "compressor", "indexer", "attention", "router", "swiglu", "routed_experts", "combine", "head", "engram")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "tests/golden")
    args = parser.parse_args()
    for op in OPS:
        for f in Vectors().make(op):
            f.write(args.out / "ops")


if __name__ == "__main__":
    main()
