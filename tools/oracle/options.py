"""Every switch of the oracle: rounding points and seeded mistakes. The default value is always the right one.

`mistake` numbers are those of the specification's list of classic mistakes.
"""

from dataclasses import dataclass, field, fields, replace


def _rounding(default, doc, plain=None):
    """A rounding point; `plain` is its value in plain numerics if it differs."""
    return field(default=default, metadata={"doc": doc, "plain": default if plain is None else plain})


def _mistake(number, default, doc, choices=None):
    return field(default=default, metadata={"mistake": number, "doc": doc, "choices": choices})


@dataclass
class Options:
    release: bool = _rounding(True, "float32 arithmetic and the release's rounding points; off: float64 throughout", plain=False)

    # Rounding points.
    bf16: bool = _rounding(True, "round tensors between ops to bf16", plain=False)
    activation_fp8: bool = _rounding(True, "FP8 activations (group 128) in front of FP8 and MXFP4 weights", plain=False)
    window_fp8: bool = _rounding(True, "FP8 rounding of the non-rotary part of window rows", plain=False)
    compressed_fp8: bool = _rounding(True, "FP8 rounding of the non-rotary part of compressed entries", plain=False)
    hadamard_query: bool = _rounding(True, "Hadamard rotation of indexer queries", plain=False)
    hadamard_key: bool = _rounding(True, "Hadamard rotation of indexer entries", plain=False)
    fp4_query: bool = _rounding(True, "FP4 rounding of indexer queries", plain=False)
    fp4_key: bool = _rounding(True, "FP4 rounding of indexer entries", plain=False)
    probability_bf16: bool = _rounding(True, "bf16 exponentials in the product with the values", plain=False)
    query_norm_bf16: bool = _rounding(True, "per-head query norm with each intermediate rounded to bf16", plain=False)
    indexer_bf16: bool = _rounding(True, "indexer scores with each stage rounded to bf16", plain=False)
    online_softmax: bool = _rounding(False, "running maximum over chunks of 64 slots, as the release's kernel does")
    nvfp4_activation_fp8: bool = _rounding(False, "FP8 activations in front of NVFP4 weights too")
    wo_a_fp8: bool = _rounding(False, "FP8 activations in front of wo_a")
    float32_products: bool = _rounding(False, "matrix products accumulated in float32 instead of float64")
    hc_mix_bf16: bool = _rounding(False, "post and comb rounded to bf16")
    router_bf16: bool = _rounding(False, "router logits rounded to bf16")
    weight_after_w2: bool = _rounding(False, "routing weight multiplied after w2 instead of before")

    # Hyper-connections.
    hc_split: str = _mistake(1, "pre,post,comb", "order of the parts of fn, base and scale", ("pre,post,comb", "pre,comb,post"))
    hc_comb: str = _mistake(2, "transposed", "side on which comb is applied", ("transposed", "straight"))
    sinkhorn_start: str = _mistake(3, "softmax", "what Sinkhorn starts from", ("softmax", "exp", "sigmoid"))
    sinkhorn_first: str = _mistake(3, "column", "first normalisation after the start", ("column", "row"))
    sinkhorn_extra: int = _mistake(3, 0, "additional passes")
    sinkhorn_eps: bool = _mistake(3, True, "eps in the denominators")
    hc_pre_eps: bool = _mistake(4, True, "eps added to pre")
    hc_post_eps: bool = _mistake(4, False, "eps added to post")
    hc_post_factor: float = _mistake(4, 2.0, "factor of post")
    hc_gemv: str = _mistake(5, "fp32", "operands of the mixing product", ("fp32", "bf16", "normalised-bf16"))
    hc_norm: str = _mistake(5, "all-streams", "what the norm of the mixing product runs over", ("all-streams", "per-stream"))
    hc_source: str = _mistake(5, "raw", "streams summed into the layer input", ("raw", "normalised"))

    # Draft block.
    mtp_input: str = _mistake(6, "streams", "what enters the draft block", ("streams", "hc_head"))
    mtp_router: str = _mistake(23, "scored", "routing in the draft block", ("scored", "hash"))

    # Attention.
    query_norm: str = _mistake(7, "before-rope", "per-head norm of queries", ("before-rope", "none", "after-rope"))
    kv_head_norm: bool = _mistake(7, False, "the unweighted head norm on window rows too")
    rope_dims: str = _mistake(8, "last", "rotated dimensions", ("last", "first"))
    rope_pairs: str = _mistake(8, "interleaved", "which elements form a pair", ("interleaved", "half-split"))
    window_rope: str = _mistake(9, "layer", "table of queries and window rows in compressed layers", ("layer", "plain"))
    window_key_rope: str = _mistake(9, "layer", "table of window rows alone in compressed layers", ("layer", "plain"))
    swa_rope: str = _mistake(9, "plain", "table of sliding-window layers", ("plain", "yarn"))
    yarn_amplitude: str = _mistake(10, "none", "where YaRN's 0.1 ln(factor) + 1 goes", ("none", "rotation", "softmax"))
    entry_position: str = _mistake(11, "first", "position at which entry j is rotated", ("first", "last", "index"))
    inverse_rope: str = _mistake(12, "query", "position of the inverse rotation", ("query", "none", "key", "zero", "other-table"))
    sink: str = _mistake(13, "logit", "attention sink", ("logit", "none", "scaled", "per-chunk", "value-row"))
    value: str = _mistake(14, "key", "value rows", ("key", "nope-only", "unrotated", "unquantised"))
    visibility: str = _mistake(15, "complete-blocks", "entries a query sees",
                               ("complete-blocks", "off-by-one", "incomplete", "chunk-end", "outside-window"))
    window_offset: int = _mistake(16, 0, "added to the window length")
    window_ring: str = _mistake(16, "kept", "rows a chunk's early queries see", ("kept", "overwritten"))
    chunk: int = _mistake(15, 37, "chunk length of the chunk-wise mistakes (13, 15, 16)")

    # Compressor.
    compressor_halves: str = _mistake(17, "previous,current", "channel halves at ratio 4", ("previous,current", "current,previous"))
    compressor_rows: str = _mistake(17, "overlap", "rows pooled at ratio 4; also: only one half of the state shifted", ("overlap", "current"))
    compressor_weights: str = _mistake(17, "per-channel", "pooling softmax", ("per-channel", "shared"))
    ape: str = _mistake(17, "once", "additions of the position bias", ("once", "none", "twice"))
    hca_overlap: bool = _mistake(18, False, "ratio 128 pooled over the previous block too")
    hca_topk: bool = _mistake(18, False, "ratio 128 limited to the newest entry, as if selected")
    initial_score: str = _mistake(19, "minus-infinity", "score of absent rows", ("minus-infinity", "zero"))
    stale_state: bool = _mistake(19, False, "rows of an earlier sequence seen as the block before the first")
    prefill_remainder: str = _mistake(19, "kept", "rows after the last whole block of a prefill of `prefill` tokens", ("kept", "dropped"))
    prefill_previous: str = _mistake(19, "kept", "the last whole block of that prefill as previous block", ("kept", "dropped"))
    prefill: int = _mistake(19, 150, "length of that prefill")

    # Indexer.
    indexer_entries: str = _mistake(20, "complete", "entries older than index_topk", ("complete", "skipped"))
    indexer_query: str = _mistake(21, "normed", "input of the indexer's wq_b", ("normed", "unnormed", "hidden"))
    indexer_rope: str = _mistake(21, "both", "rotation in the indexer", ("both", "none", "key", "query"))
    indexer_relu: bool = _mistake(21, True, "ReLU of the dot products")
    indexer_weights: str = _mistake(21, "linear", "head weights", ("linear", "softmax"))
    index_topk: int = _mistake(21, 0, "another top-k than the config's")
    select_all: bool = _mistake(21, False, "no selection")

    # Experts.
    router_bias: str = _mistake(22, "selection", "what the bias affects", ("selection", "weights", "none"))
    router_score: str = _mistake(22, "sqrtsoftplus", "scoring function", ("sqrtsoftplus", "softmax", "sigmoid", "softplus"))
    router_normalise: str = _mistake(22, "selected", "scores normalised over", ("selected", "all", "none"))
    route_scale: float = _mistake(22, 0.0, "another scale than the config's")
    hash_key: str = _mistake(23, "token", "row of tid2eid", ("token", "position"))
    hash_dtype: str = _mistake(23, "int64", "reading of tid2eid", ("int64", "int32"))
    swiglu_clamp: bool = _mistake(24, True, "clamp in all experts")
    shared_clamp: bool = _mistake(24, True, "clamp in the shared expert")
    gate_clamp: str = _mistake(24, "above", "clamp of the gate", ("above", "both", "after-silu"))

    # Checkpoint.
    e8m0: str = _mistake(25, "exponent", "reading of e8m0 scales", ("exponent", "numeric", "inverse"))
    nibbles: str = _mistake(25, "low-first", "nibble order", ("low-first", "high-first"))
    mxfp4_scales: str = _mistake(25, "row-major", "walk through the MXFP4 scales", ("row-major", "column-major", "square-blocks"))
    global_scale: str = _mistake(25, "applied", "NVFP4 tensor scale", ("applied", "dropped", "inverse"))

    # Cache rows, head, tables.
    kv_rounding: str = _mistake(26, "nope-after-rope", "what is FP8-rounded", ("nope-after-rope", "all-before-rope", "all-after-rope"))
    kv_group: int = _mistake(26, 64, "group of that rounding")
    head_input: str = _mistake(27, "normed", "input of the head", ("normed", "unnormed"))
    logits: str = _mistake(27, "fp32", "precision of the head", ("fp32", "bf16"))
    sincos: str = _mistake(28, "accurate", "sine and cosine", ("accurate", "fast"))

    # DSpark drafter.
    dspark_tap: str = _mistake(29, "output", "streams of a tapped layer", ("output", "input"))
    dspark_tap_streams: str = _mistake(29, "mean", "the tap of several streams (their sum is the mean: main_norm)", ("mean", "first"))
    dspark_tap_order: str = _mistake(29, "config", "order of the taps", ("config", "reversed"))
    dspark_main_norm: bool = _mistake(29, True, "main_norm after main_proj")
    dspark_window: str = _mistake(30, "fixed", "context rows of row j of a block", ("fixed", "sliding", "one-short", "one-late"))
    dspark_block_rows: str = _mistake(30, "all", "rows of its block that a row sees", ("all", "earlier", "none"))
    dspark_anchor: str = _mistake(30, "next", "position of the anchor, counted from the last context row", ("next", "same"))
    dspark_noise: str = _mistake(30, "noise", "tokens behind the anchor", ("noise", "anchor"))
    dspark_markov: str = _mistake(31, "previous", "token of the Markov term", ("previous", "anchor", "none"))
    dspark_markov_tables: str = _mistake(31, "w1,w2", "embedding and projection of the Markov head", ("w1,w2", "w2,w1"))
    dspark_confidence: str = _mistake(32, "unnormed", "hidden state of the confidence head", ("unnormed", "normed"))

    @staticmethod
    def make(plain: bool = False, **changes) -> "Options":
        """Release or plain numerics with some fields changed; unknown names and values are errors."""
        base = Options()
        if plain:
            base = replace(base, **{f.name: f.metadata["plain"] for f in fields(Options) if "plain" in f.metadata})
        known = {f.name: f for f in fields(Options)}
        for name, value in changes.items():
            if name not in known:
                raise ValueError(f"option {name}: unknown; known are {', '.join(sorted(known))}")
            choices = known[name].metadata.get("choices")
            if choices and value not in choices:
                raise ValueError(f"option {name}: got {value!r}, wanted one of {choices}")
        return replace(base, **changes)

    @staticmethod
    def parse(assignment: str) -> tuple[str, object]:
        """'name=value' from a command line, the value in the field's type."""
        name, _, text = assignment.partition("=")
        known = {f.name: f for f in fields(Options)}
        if name not in known:
            raise ValueError(f"option {name}: unknown; known are {', '.join(sorted(known))}")
        kind = type(known[name].default)
        if kind is bool:
            if text not in ("0", "1"):
                raise ValueError(f"option {name}: got {text!r}, wanted 0 or 1")
            return name, text == "1"
        return name, kind(text)
