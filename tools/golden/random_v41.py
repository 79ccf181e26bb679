"""Random models of the V4.1 architecture: config in both dialects, and weights by the release's names."""

from dataclasses import dataclass, field

import numpy as np

import encode


@dataclass
class Shape41:
    """A toy of the V4.1 architecture. Every field is a config value of the same meaning."""

    ratios: list[int]
    kv_sources: list[int]
    index_sources: list[int]
    candidate_source: int | None = None
    candidate_blocks: int = 3
    candidate_block_size: int = 8
    vocab: int = 96
    hidden: int = 64
    heads: int = 2
    head_dim: int = 64
    rope_dim: int = 32
    q_lora: int = 64
    o_groups: int = 2
    o_lora: int = 32
    window: int = 16
    index_heads: int = 4
    index_dim: int = 32
    index_topk: int = 6
    experts: int = 4
    experts_per_token: int = 2
    inter: int = 64
    gate_temp: float = 1.0
    swiglu_limit: float = 0.8
    engram_layers: list[int] = field(default_factory=list)
    engram_vocab: int = 90
    engram_ngram: int = 4
    engram_heads: int = 2
    engram_dim: int = 32
    dspark_stages: int = 0
    dspark_experts: int = 3
    dspark_rank: int = 32
    release_formats: bool = True
    calm: float = 0.2


def config(s: Shape41, rows: list[int], classes: int) -> dict:
    """The flat keys of config.json; `rows` of each Engram table."""
    out = {
        "model_type": "deepseek_v41_text", "vocab_size": s.vocab, "hidden_size": s.hidden, "num_hidden_layers": len(s.ratios),
        "num_attention_heads": s.heads, "head_dim": s.head_dim, "qk_rope_head_dim": s.rope_dim, "q_lora_rank": s.q_lora,
        "o_groups": s.o_groups, "o_lora_rank": s.o_lora, "sliding_window": s.window, "rope_theta": 10000, "compress_rope_theta": 160000,
        "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536},
        "rms_norm_eps": 1e-20, "compress_ratios": s.ratios + [0] * s.dspark_stages, "kv_source_layer_ids": s.kv_sources,
        "index_source_layer_ids": s.index_sources, "candidate_source_layer_id": -1 if s.candidate_source is None else s.candidate_source,
        "candidate_topk_blocks": s.candidate_blocks, "candidate_block_size": s.candidate_block_size, "index_n_heads": s.index_heads,
        "index_head_dim": s.index_dim, "index_topk": s.index_topk, "n_routed_experts": s.experts, "num_experts_per_tok": s.experts_per_token,
        "n_shared_experts": 1, "moe_intermediate_size": s.inter, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
        "routed_scaling_factor": 1.5, "gate_temp": s.gate_temp, "swiglu_limit": s.swiglu_limit, "hc_mult": 4, "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6, "num_nextn_predict_layers": s.dspark_stages, "bos_token_id": 0, "eos_token_id": 1,
    }
    if s.engram_layers:
        out |= {"engram_layer_ids": s.engram_layers, "engram_vocab_size": s.engram_vocab, "engram_num_embeddings": rows,
                "engram_max_ngram_size": s.engram_ngram, "engram_n_heads": s.engram_heads, "engram_head_dim": s.engram_dim,
                "engram_pad_token_id": 2, "engram_compressed_vocab_size": classes}
    if s.dspark_stages:
        out |= {"dspark_block_size": 5, "dspark_noise_token_id": s.vocab - 1, "dspark_markov_rank": s.dspark_rank,
                "dspark_target_layer_ids": list(range(len(s.ratios) - 3, len(s.ratios))), "dspark_n_routed_experts": s.dspark_experts,
                "dspark_num_experts_per_tok": 2}
    return out


def nested(flat: dict) -> dict:
    outer = {k: flat[k] for k in ("bos_token_id", "eos_token_id")}
    return outer | {
        "architectures": ["DeepseekV41ForConditionalGeneration"], "model_type": "deepseek_v41",
        "text_config": {k: v for k, v in flat.items() if k not in outer}, "vision_config": {}, "image_token_id": flat["vocab_size"] - 2,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0", "expert_dtype": "fp4"}}


def tensors(s: Shape41, rows: list[int], seed: int) -> dict[str, encode.Tensor]:
    """Every tensor of the checkpoint in its stored form."""
    rng = np.random.default_rng(seed)
    out: dict[str, encode.Tensor] = {}
    d, h = s.hidden, 4

    def normal(*dims, std=1.0):
        return (rng.standard_normal(dims) * std).astype(np.float32)

    def matrix(n, k, gain=1.0):
        return normal(n, k, std=gain / np.sqrt(k))

    def put(name, parts):
        for suffix, tensor in parts.items():
            out[name + (f".{suffix}" if suffix else "")] = tensor

    def dense(name, n, k, gain=1.0):
        put(name, encode.fp8_block(matrix(n, k, gain), (32, 32)) if s.release_formats else encode.bf16(matrix(n, k, gain)))

    def bf16(name, x):
        put(name, encode.bf16(x))

    def bare(name, x):
        out[name] = encode.bf16(x)["weight"]

    def norm(name, n, level=1.0):
        bf16(name, (level * (1 + 0.2 * rng.standard_normal(n))).astype(np.float32))

    def expert(name, kind):
        for part, (n, k, gain) in {"w1": (s.inter, d, 1), "w3": (s.inter, d, 1), "w2": (d, s.inter, s.calm)}.items():
            if kind == "routed" and s.release_formats:
                put(f"{name}.{part}", encode.mxfp4(matrix(n, k, gain)))
            else:
                dense(f"{name}.{part}", n, k, gain)

    def hyper(name):
        mix = (2 + h) * h
        put(f"{name}_fn", encode.f32(matrix(mix, h * d)))
        put(f"{name}_base", encode.f32(normal(mix, std=0.7)))
        put(f"{name}_scale", encode.f32((1 + 0.5 * rng.random(3)).astype(np.float32)))

    def layer(p, experts, ratio=0, index=-1):
        hyper(f"{p}hc_attn")
        hyper(f"{p}hc_ffn")
        norm(f"{p}attn_norm", d)
        norm(f"{p}ffn_norm", d)
        a = f"{p}attn."
        put(f"{a}attn_sink", encode.f32(normal(s.heads, std=2.0) + 1))
        dense(f"{a}wq_a", s.q_lora, d)
        norm(f"{a}q_norm", s.q_lora)
        dense(f"{a}wq_b", s.heads * s.head_dim, s.q_lora)
        dense(f"{a}wkv", s.head_dim, d)
        norm(f"{a}kv_norm", s.head_dim, 2.0)
        dense(f"{a}wo_a", s.o_groups * s.o_lora, s.heads // s.o_groups * s.head_dim)
        dense(f"{a}wo_b", d, s.o_groups * s.o_lora, s.calm)
        if index in s.kv_sources:
            bf16(f"{a}compressor.wkv", matrix(s.head_dim, d))
            norm(f"{a}compressor.norm", s.head_dim, 2.0)
            if ratio > 1:
                bf16(f"{a}compressor.wgate", matrix(s.head_dim, d, 2.0))
            bf16(f"{a}indexer.wk", matrix(s.index_dim, s.head_dim))
            norm(f"{a}indexer.k_norm", s.index_dim)
        if index in s.index_sources:
            dense(f"{a}indexer.wq_b", s.index_heads * s.index_dim, s.q_lora)
            bf16(f"{a}indexer.weights_proj", matrix(s.index_heads, d))
        f = f"{p}ffn."
        bf16(f"{f}gate", matrix(experts, d, 4.0))
        put(f"{f}gate.bias", encode.f32(normal(experts, std=0.3)))
        put(f"{f}gate.bias_vl", encode.f32(normal(experts, std=3.0)))
        for e in range(experts):
            expert(f"{f}experts.{e}", "routed")
        expert(f"{f}shared_experts", "shared")
        if index in s.engram_layers:
            e = f"{p}engram."
            table = normal(rows[s.engram_layers.index(index)], s.engram_dim)
            put(f"{e}embed", encode.fp8_block(table, (1, 32)) if s.release_formats else encode.bf16(table))
            dense(f"{e}wkv", (h + 1) * d, (s.engram_ngram - 1) * s.engram_heads * s.engram_dim, 0.5)
            bare(f"{e}q_weight", 1 + normal(h, d, std=0.3))
            bare(f"{e}k_weight", 1 + normal(h, d, std=0.3))

    bf16("embed", normal(s.vocab, d))
    bf16("head", matrix(s.vocab, d))
    norm("norm", d)
    for index, ratio in enumerate(s.ratios):
        layer(f"layers.{index}.", s.experts, ratio, index)
    for stage in range(s.dspark_stages):
        layer(f"mtp.{stage}.", s.dspark_experts)
    if s.dspark_stages:
        last = f"mtp.{s.dspark_stages - 1}."
        dense("mtp.0.main_proj", d, 3 * d)
        norm("mtp.0.main_norm", d)
        norm(f"{last}norm", d)
        bf16(f"{last}markov_head.embed", normal(s.vocab, s.dspark_rank))
        bf16(f"{last}markov_head.head", matrix(s.vocab, s.dspark_rank))
        bf16(f"{last}confidence_head.proj", matrix(1, d + s.dspark_rank, 2.0))
    return out
