"""Measures every classic mistake against the goldens and writes tests/golden/mistakes.json.

Each entry names the oracle option that seeds the mistake, the golden that shows it and what was measured there. An entry whose
golden does not fail its bound stops this script: a fixture that cannot fail proves nothing.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from oracle.compare import cosines, summary  # noqa: E402
from oracle.model import Model  # noqa: E402
from oracle.options import Options  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BOUNDS = {"plain": {"min": 0.99999}, "release": {"median": 0.99993, "p5": 0.9996}}


@dataclass
class Mistake:
    """`golden` is a model ("tf_narrow", run in plain numerics; "fp8_mxfp4:release"; "fp8_mxfp4:mtp") or "ops/<file>"."""

    id: str
    number: int
    text: str
    golden: str
    options: dict


def m(number: int, name: str, text: str, golden: str, **options) -> Mistake:
    return Mistake(f"{number:02d}-{name}", number, text, golden, options)


MISTAKES = [
    m(1, "split-order", "fn, base and scale split as pre, comb, post", "tf_narrow", hc_split="pre,comb,post"),
    m(2, "comb-straight", "comb applied without transposition", "tf_narrow", hc_comb="straight"),
    m(3, "sinkhorn-exp", "Sinkhorn started from exp", "tf_narrow", sinkhorn_start="exp"),
    m(3, "sinkhorn-sigmoid", "Sinkhorn started from sigmoid", "tf_narrow", sinkhorn_start="sigmoid"),
    m(3, "sinkhorn-first-row", "no column step after the softmax", "tf_narrow", sinkhorn_first="row"),
    m(3, "sinkhorn-extra", "one pass too many", "tf_narrow", sinkhorn_extra=1),
    m(3, "sinkhorn-no-eps", "eps missing in the denominators", "tf_narrow", sinkhorn_eps=False),
    m(4, "pre-no-eps", "eps forgotten on pre", "tf_narrow", hc_pre_eps=False),
    m(4, "post-eps", "eps added to post", "tf_narrow", hc_post_eps=True),
    m(4, "post-no-factor", "factor 2 forgotten on post", "tf_narrow", hc_post_factor=1.0),
    m(5, "hc-bf16", "mixing product in bf16", "ops/hyper_connection", hc_gemv="bf16"),
    m(5, "hc-prenormalised", "mixing product on data normalised and rounded before it", "ops/hyper_connection", hc_gemv="normalised-bf16"),
    m(5, "hc-norm-per-stream", "norm taken per stream", "tf_narrow", hc_norm="per-stream"),
    m(5, "hc-normalised-sum", "layer input summed from normalised streams (the norm after it hides all but the rounding)",
      "ops/hyper_connection", hc_source="normalised"),
    m(6, "mtp-after-head", "hc_head applied before the draft block", "fp8_mxfp4:mtp", mtp_input="hc_head"),
    m(7, "no-head-norm", "per-head query norm missing", "tf_narrow", query_norm="none"),
    m(7, "head-norm-after-rope", "per-head norm after RoPE (equal but for rounding)", "fp8_mxfp4:release", query_norm="after-rope"),
    m(7, "kv-head-norm", "head norm applied to window rows", "tf_narrow", kv_head_norm=True),
    m(8, "rope-first-dims", "first dims rotated", "tf_narrow", rope_dims="first"),
    m(8, "rope-half-split", "half-split pairs", "tf_narrow", rope_pairs="half-split"),
    m(9, "window-theta", "theta 10000 for queries and window rows of compressed layers", "tf_narrow", window_rope="plain"),
    m(9, "separate-theta", "window rows and entries of a layer rotated with different tables", "tf_narrow", window_key_rope="plain"),
    m(9, "yarn-in-swa", "YaRN in sliding-window layers", "tf_narrow", swa_rope="yarn"),
    m(10, "yarn-on-rotation", "YaRN amplitude on cos and sin", "tf_narrow", yarn_amplitude="rotation"),
    m(10, "yarn-on-softmax", "YaRN amplitude squared in the softmax scale", "tf_narrow", yarn_amplitude="softmax"),
    m(11, "entry-last", "entry rotated at its block's last position", "tf_narrow", entry_position="last"),
    m(11, "entry-index", "entry rotated at its index", "tf_narrow", entry_position="index"),
    m(12, "no-inverse-rope", "inverse rotation omitted", "tf_narrow", inverse_rope="none"),
    m(12, "inverse-at-key", "inverse rotation at the key's position", "tf_narrow", inverse_rope="key"),
    m(12, "inverse-at-zero", "inverse rotation at position 0", "tf_narrow", inverse_rope="zero"),
    m(12, "inverse-other-table", "inverse rotation with the other table", "tf_narrow", inverse_rope="other-table"),
    m(13, "no-sink", "sink left out", "tf_narrow", sink="none"),
    m(13, "sink-scaled", "sink multiplied by the softmax scale", "tf_narrow", sink="scaled"),
    m(13, "sink-per-chunk", "sink added once per chunk of keys", "tf_wide", sink="per-chunk"),
    m(13, "sink-value", "sink treated as a value row", "tf_narrow", sink="value-row"),
    m(14, "value-nope-only", "value without the rotary dims", "tf_narrow", value="nope-only"),
    m(14, "value-unrotated", "value before rotation", "tf_narrow", value="unrotated"),
    m(14, "value-unquantised", "value before FP8 rounding", "fp8_mxfp4:release", value="unquantised"),
    m(15, "count-off-by-one", "entries visible from floor(p / r)", "tf_narrow", visibility="off-by-one"),
    m(15, "count-per-chunk", "one count per chunk instead of per query", "tf_narrow", visibility="chunk-end"),
    m(15, "incomplete-block", "queries see the block in progress", "tf_narrow", visibility="incomplete"),
    m(15, "outside-window", "entries inside the window excluded", "tf_wide", visibility="outside-window"),
    m(16, "window-127", "window one short", "tf_wide", window_offset=-1),
    m(16, "window-129", "window one long", "tf_wide", window_offset=1),
    m(16, "ring-overwritten", "a chunk overwrites ring rows its first queries need", "tf_wide", window_ring="overwritten"),
    m(17, "halves-swapped", "channel halves swapped", "tf_narrow", compressor_halves="current,previous"),
    m(17, "four-rows", "only the current four rows pooled; the same as shifting only the second half of the state", "tf_narrow",
      compressor_rows="current"),
    m(17, "shared-softmax", "one pooling weight for all channels", "tf_narrow", compressor_weights="shared"),
    m(17, "ape-twice", "ape applied twice", "tf_narrow", ape="twice"),
    m(17, "no-ape", "ape left out", "tf_narrow", ape="none"),
    m(18, "hca-overlap", "ratio 128 pooled over two blocks", "tf_narrow", hca_overlap=True),
    m(18, "hca-selected", "ratio 128 limited to one selected entry", "tf_narrow", hca_topk=True),
    m(19, "score-zero", "score state initialised to 0", "tf_narrow", initial_score="zero"),
    m(19, "state-not-reset", "an earlier sequence's rows seen as the block before the first", "tf_narrow", stale_state=True),
    m(19, "remainder-lost", "remainder of a prefill not written to the state", "tf_narrow", prefill_remainder="dropped"),
    m(19, "previous-lost", "last whole block of a prefill not kept as previous rows", "tf_narrow", prefill_previous="dropped"),
    m(20, "indexer-skipped", "indexer compressor skipped while everything is selected", "tf_narrow", indexer_entries="skipped"),
    m(21, "indexer-from-hidden", "indexer query from the layer input (needs q_lora = hidden)", "fp8_mxfp4", indexer_query="hidden"),
    m(21, "indexer-unnormed", "indexer query from the un-normed q_a", "tf_narrow", indexer_query="unnormed"),
    m(21, "indexer-no-rope", "no rotation in the indexer", "tf_narrow", indexer_rope="none"),
    m(21, "indexer-rope-one-side", "rotation of the indexer's entries alone", "tf_narrow", indexer_rope="key"),
    m(21, "hadamard-one-side", "Hadamard on queries alone", "nvfp4_experts:release", hadamard_key=False),
    m(21, "no-hadamard", "Hadamard on neither side", "ops/indexer_row", hadamard_query=False, hadamard_key=False),
    m(21, "no-relu", "ReLU forgotten", "tf_narrow", indexer_relu=False),
    m(21, "weights-softmax", "head weights through a softmax", "tf_narrow", indexer_weights="softmax"),
    m(21, "other-topk", "another model's top-k", "tf_narrow", index_topk=16),
    m(21, "select-all", "no selection", "tf_narrow", select_all=True),
    m(22, "bias-in-weights", "router bias used in the weights", "tf_narrow", router_bias="weights"),
    m(22, "router-softmax", "softmax scores", "tf_narrow", router_score="softmax"),
    m(22, "router-sigmoid", "sigmoid scores", "tf_narrow", router_score="sigmoid"),
    m(22, "no-sqrt", "softplus without the square root", "tf_narrow", router_score="softplus"),
    m(22, "normalised-before", "scores normalised before selection", "tf_narrow", router_normalise="all"),
    m(22, "no-route-scale", "route_scale missing", "tf_narrow", route_scale=1.0),
    m(22, "wrong-route-scale", "the other model's route_scale", "tf_narrow", route_scale=1.5),
    m(23, "hash-mtp", "hash routing in the draft block", "fp8_mxfp4:mtp", mtp_router="hash"),
    m(23, "hash-by-position", "hash routing by position", "tf_wide", hash_key="position"),
    m(23, "hash-int32", "tid2eid read as int32", "tf_wide", hash_dtype="int32"),
    m(24, "gate-clamped-below", "gate clamped from below too", "tf_narrow", gate_clamp="both"),
    m(24, "clamp-after-silu", "gate clamped after SiLU", "tf_narrow", gate_clamp="after-silu"),
    m(24, "shared-unclamped", "shared expert unclamped", "tf_narrow", shared_clamp=False),
    m(24, "unclamped", "no clamp", "tf_narrow", swiglu_clamp=False),
    m(25, "e8m0-numeric", "e8m0 converted instead of reinterpreted", "fp8_mxfp4", e8m0="numeric"),
    m(25, "e8m0-inverse", "scale taken for its inverse", "fp8_mxfp4", e8m0="inverse"),
    m(25, "nibbles-swapped", "nibble order swapped", "fp8_mxfp4", nibbles="high-first"),
    m(25, "mxfp4-scale-layout", "MXFP4 scales walked column by column", "fp8_mxfp4", mxfp4_scales="column-major"),
    m(25, "mxfp4-square-blocks", "MXFP4 scales taken for 128 x 128 blocks", "fp8_mxfp4", mxfp4_scales="square-blocks"),
    m(25, "tensor-scale-dropped", "NVFP4 weight_scale_2 dropped", "nvfp4_experts", global_scale="dropped"),
    m(25, "global-scale-inverse", "weight_global_scale taken for a multiplier", "nvfp4_ct", global_scale="inverse"),
    m(26, "fp8-before-rope", "whole row rounded before RoPE", "fp8_mxfp4:release", kv_rounding="all-before-rope"),
    m(26, "fp8-rope-dims", "rotary dims rounded too", "fp8_mxfp4:release", kv_rounding="all-after-rope"),
    m(26, "fp8-group-128", "groups of 128 instead of 64", "ops/kv_row", kv_group=128),
    m(27, "head-unnormed", "head fed with un-normed values", "tf_narrow", head_input="unnormed"),
    m(27, "head-bf16", "logits in bf16", "ops/head", logits="bf16"),
    m(28, "fast-sincos", "float32 range reduction at positions above 1e5", "ops/rope", sincos="fast"),
]


class Goldens:
    def __init__(self, root: Path):
        self.root = root

    def measure(self, mistake: Mistake) -> dict:
        """Result of the golden for the mistake: numerics, measured, bound, fails."""
        if mistake.golden.startswith("ops/"):
            return self._op(mistake)
        name, _, kind = mistake.golden.partition(":")
        directory = self.root / "models" / name
        ids = np.array(json.loads((directory / "tokens.json").read_text()))
        numerics = "release" if kind == "release" else "plain"
        model = Model(directory, Options.make(plain=numerics == "plain", **mistake.options))
        file = {"mtp": "logits.mtp.plain.npy", "release": "logits.release.npy"}.get(kind)
        file = file or ("logits.prefill.npy" if name.startswith("tf_") else "logits.plain.npy")
        with np.errstate(all="ignore"):
            cos = cosines(model.mtp(ids) if kind == "mtp" else model.forward(ids), np.load(directory / file))
        measured, bound = summary(cos), BOUNDS[numerics]
        return {"file": f"models/{name}/{file}", "numerics": numerics, "measured": measured, "bound": bound,
                "fails": any(measured[k] < v for k, v in bound.items())}

    def _op(self, mistake: Mistake) -> dict:
        """Share of output elements that are no longer bit-equal; the bound is none (one bf16 step at most for summation order)."""
        from make_ops import Vectors
        name = mistake.golden.removeprefix("ops/")
        right, wrong = Vectors().make(name)[0], Vectors(Options.make(**mistake.options)).make(name)[0]
        share = _changed(right.tensors, wrong.tensors)
        return {"file": f"ops/{name}.safetensors", "numerics": "release", "measured": {"changed": share}, "bound": {"changed": 0.0},
                "fails": share > 0}


def _changed(a: dict, b: dict) -> float:
    """Largest share of elements that differ over the tensors of two op files."""
    return max(float((np.asarray(a[k][1]) != np.asarray(b[k][1])).mean()) for k in a)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--goldens", type=Path, default=ROOT / "tests/golden")
    args = parser.parse_args()
    goldens, entries, silent = Goldens(args.goldens), [], []
    for mistake in MISTAKES:
        result = goldens.measure(mistake)
        print(f"{mistake.id:28s} {'fails' if result['fails'] else 'SILENT'} {result['measured']}", flush=True)
        if not result.pop("fails"):
            silent.append(mistake.id)
        entries.append({"id": mistake.id, "number": mistake.number, "mistake": mistake.text, "golden": mistake.golden,
                        "options": mistake.options, **result})
    if silent:
        sys.exit(f"mistakes no golden sees: {', '.join(silent)}")
    (args.goldens / "mistakes.json").write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
