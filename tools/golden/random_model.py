"""Random models: weights by the release's names, and the two config dialects.

An ordinary random model amplifies rounding: two correct implementations of the release's formats agree only to a cosine of
0.997-0.999. A *calm* one (small wo_b and w2, sharp router, acting clamp) brings that to 0.99995, so that it can certify rounding.
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Shape:
    """A toy of the V4 architecture. Every field is a config value of the same meaning."""

    ratios: list[int]
    num_hash_layers: int = 1
    vocab: int = 96
    hidden: int = 128
    heads: int = 2
    head_dim: int = 128
    rope_dim: int = 64
    q_lora: int = 128
    o_groups: int = 2
    o_lora: int = 64
    window: int = 128
    index_heads: int = 8
    index_dim: int = 64
    index_topk: int = 12
    experts: int = 4
    experts_per_token: int = 2
    inter: int = 128
    route_scale: float = 1.5
    swiglu_limit: float = 0.8
    hc_mult: int = 4
    hc_iters: int = 20
    hc_eps: float = 1e-6
    mtp: bool = False
    dspark_stages: int = 0
    dspark_rank: int = 32
    calm: bool = True
    yarn: dict = field(default_factory=lambda: {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536,
                                                "beta_fast": 32, "beta_slow": 1})


def weights(shape: Shape, seed: int) -> dict[str, np.ndarray]:
    """float32 weights by the release's names without suffix; tid2eid is int64."""
    rng = np.random.default_rng(seed)
    s, d, h = shape, shape.hidden, shape.hc_mult
    calm = 0.2 if s.calm else 1.0
    out: dict[str, np.ndarray] = {}

    def normal(*dims, std=1.0):
        return (rng.standard_normal(dims) * std).astype(np.float32)

    def matrix(n, k, gain=1.0):
        return normal(n, k, std=gain / np.sqrt(k))

    def norm(n, level=1.0):
        return (level * (1 + 0.2 * rng.standard_normal(n))).astype(np.float32)

    def hyper(prefix, mix):
        out[f"{prefix}_fn"] = matrix(mix, h * d)
        out[f"{prefix}_base"] = normal(mix, std=0.7)
        out[f"{prefix}_scale"] = (1 + 0.5 * rng.random(1 if mix == h else 3)).astype(np.float32)

    def compressor(prefix, width, ratio):
        c = 2 if ratio == 4 else 1
        out[f"{prefix}.wkv"] = matrix(c * width, d)
        out[f"{prefix}.wgate"] = matrix(c * width, d, 2.0)
        out[f"{prefix}.ape"] = normal(ratio, c * width)
        out[f"{prefix}.norm"] = norm(width)

    def layer(scope, ratio, hashed):
        hyper(f"{scope}.hc_attn", (2 + h) * h)
        hyper(f"{scope}.hc_ffn", (2 + h) * h)
        out[f"{scope}.attn_norm"], out[f"{scope}.ffn_norm"] = norm(d), norm(d)
        a = f"{scope}.attn"
        out[f"{a}.attn_sink"] = normal(s.heads, std=2.0) + 1
        out[f"{a}.wq_a"], out[f"{a}.q_norm"] = matrix(s.q_lora, d), norm(s.q_lora)
        out[f"{a}.wq_b"] = matrix(s.heads * s.head_dim, s.q_lora)
        out[f"{a}.wkv"], out[f"{a}.kv_norm"] = matrix(s.head_dim, d), norm(s.head_dim, 2.0)
        out[f"{a}.wo_a"] = matrix(s.o_groups * s.o_lora, s.heads // s.o_groups * s.head_dim)
        out[f"{a}.wo_b"] = matrix(d, s.o_groups * s.o_lora, calm)
        if ratio:
            compressor(f"{a}.compressor", s.head_dim, ratio)
        if ratio == 4:
            out[f"{a}.indexer.wq_b"] = matrix(s.index_heads * s.index_dim, s.q_lora)
            out[f"{a}.indexer.weights_proj"] = matrix(s.index_heads, d)
            compressor(f"{a}.indexer.compressor", s.index_dim, ratio)
        f = f"{scope}.ffn"
        out[f"{f}.gate"] = matrix(s.experts, d, 4.0 if s.calm else 1.0)
        if hashed:
            out[f"{f}.gate.tid2eid"] = np.array([rng.permutation(s.experts)[:s.experts_per_token] for _ in range(s.vocab)], np.int64)
        else:
            out[f"{f}.gate.bias"] = normal(s.experts, std=0.3)
        for expert in [f"experts.{e}" for e in range(s.experts)] + ["shared_experts"]:
            out[f"{f}.{expert}.w1"] = matrix(s.inter, d)
            out[f"{f}.{expert}.w3"] = matrix(s.inter, d)
            out[f"{f}.{expert}.w2"] = matrix(d, s.inter, calm)

    out["embed"], out["head"], out["norm"] = normal(s.vocab, d), matrix(s.vocab, d), norm(d)
    hyper("hc_head", h)
    for index, ratio in enumerate(s.ratios):
        layer(f"layers.{index}", ratio, index < s.num_hash_layers)
    if s.mtp:
        layer("mtp.0", 0, False)
        hyper("mtp.0.hc_head", h)
        for name in ("enorm", "hnorm", "norm"):
            out[f"mtp.0.{name}"] = norm(d)
        out["mtp.0.e_proj"], out["mtp.0.h_proj"] = matrix(d, d), matrix(d, d)
    if s.dspark_stages:
        last = f"mtp.{s.dspark_stages - 1}"
        for stage in range(s.dspark_stages):
            layer(f"mtp.{stage}", 0, False)
        out["mtp.0.main_proj"], out["mtp.0.main_norm"] = matrix(d, d * len(_taps(s))), norm(d)
        hyper(f"{last}.hc_head", h)
        out[f"{last}.norm"] = norm(d)
        # both factors of size one and a rank in between: the Markov term decides as often as the head
        out[f"{last}.markov_head.markov_w1"] = normal(s.vocab, s.dspark_rank)
        out[f"{last}.markov_head.markov_w2"] = matrix(s.vocab, s.dspark_rank)
        out[f"{last}.confidence_head.proj"] = matrix(1, d + s.dspark_rank, 2.0)
    return out


def _taps(s: Shape) -> list[int]:
    return list(range(max(0, len(s.ratios) - 3), len(s.ratios)))


def release_config(s: Shape) -> dict:
    return {
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": s.vocab, "hidden_size": s.hidden,
        "num_hidden_layers": len(s.ratios), "num_attention_heads": s.heads, "num_key_value_heads": 1, "head_dim": s.head_dim,
        "qk_rope_head_dim": s.rope_dim, "q_lora_rank": s.q_lora, "o_groups": s.o_groups, "o_lora_rank": s.o_lora,
        "sliding_window": s.window, "compress_ratios": s.ratios + [0] * (s.dspark_stages or int(s.mtp)), "compress_rope_theta": 160000,
        "rope_theta": 10000, "rope_scaling": s.yarn, "max_position_embeddings": 1048576, "index_n_heads": s.index_heads,
        "index_head_dim": s.index_dim, "index_topk": s.index_topk, "n_routed_experts": s.experts,
        "num_experts_per_tok": s.experts_per_token, "n_shared_experts": 1, "moe_intermediate_size": s.inter,
        "num_hash_layers": s.num_hash_layers, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True,
        "routed_scaling_factor": s.route_scale, "swiglu_limit": s.swiglu_limit, "hidden_act": "silu", "hc_mult": s.hc_mult,
        "hc_sinkhorn_iters": s.hc_iters, "hc_eps": s.hc_eps, "rms_norm_eps": 1e-6, "num_nextn_predict_layers": int(s.mtp or s.dspark_stages > 0),
        "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
    } | ({"dspark_block_size": 5, "dspark_noise_token_id": s.vocab - 1, "dspark_markov_rank": s.dspark_rank,
          "dspark_target_layer_ids": _taps(s)} if s.dspark_stages else {})


def transformers_config(s: Shape) -> dict:
    return transformers_form(release_config(s))


def transformers_form(release: dict) -> dict:
    """transformers' form of a release's config.json."""
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    num_layers = release["num_hidden_layers"]
    fraction = release["qk_rope_head_dim"] / release["head_dim"]
    yarn = {("rope_type" if k == "type" else k): v for k, v in release["rope_scaling"].items()}
    dropped = ("compress_ratios", "num_hash_layers", "rope_scaling", "qk_rope_head_dim", "torch_dtype")
    return {k: v for k, v in release.items() if k not in dropped} | {
        "dtype": "bfloat16", "layer_types": [kinds[r] for r in release["compress_ratios"][:num_layers]],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
        "mlp_layer_types": ["hash_moe" if i < release["num_hash_layers"] else "moe" for i in range(num_layers)],
        "partial_rotary_factor": fraction,
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": release["rope_theta"], "partial_rotary_factor": fraction},
            "compress": yarn | {"rope_theta": release["compress_rope_theta"], "partial_rotary_factor": fraction, "attention_factor": 1.0}},
    }
