"""config.json in its two dialects (the release's, transformers') as one structure."""

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np


@dataclass
class DsparkConfig:
    """The `dspark_*` keys. The number of stages is that of the tensors."""

    block_size: int
    noise_token_id: int
    markov_rank: int
    target_layer_ids: list[int]


@dataclass
class Config:
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    ratios: list[int]            # per layer: 0 = SWA, otherwise the compress ratio; CSA is the ratio of `csa_ratio`
    csa_ratio: int
    num_hash_layers: int
    index_num_heads: int
    index_head_dim: int
    index_topk: int
    num_experts: int
    experts_per_token: int
    route_scale: float
    swiglu_limit: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    yarn: dict
    fp8_block: tuple[int, int]
    dspark: "DsparkConfig | None" = None

    @staticmethod
    def load(path: Path) -> "Config":
        raw = json.loads(path.read_text())
        num_layers = raw["num_hidden_layers"]
        if "compress_ratios" in raw:
            ratios, csa_ratio = raw["compress_ratios"][:num_layers], 4
        else:
            rates = raw["compress_rates"]
            ratios = [0 if kind == "sliding_attention" else rates[kind] for kind in raw["layer_types"]]
            csa_ratio = rates.get("compressed_sparse_attention", 4)
        if "num_hash_layers" in raw:
            num_hash_layers = raw["num_hash_layers"]
        else:
            num_hash_layers = sum(kind == "hash_moe" for kind in raw["mlp_layer_types"])
        parameters = raw.get("rope_parameters")
        yarn = parameters["compress"] if parameters else raw["rope_scaling"]
        block = raw.get("quantization_config", {}).get("weight_block_size") or [128, 128]
        rope_dim = raw["qk_rope_head_dim"] if "qk_rope_head_dim" in raw else int(raw["head_dim"] * raw["partial_rotary_factor"])
        return Config(
            vocab_size=raw["vocab_size"], hidden_size=raw["hidden_size"], num_layers=num_layers,
            num_heads=raw["num_attention_heads"], head_dim=raw["head_dim"], rope_dim=rope_dim,
            q_lora_rank=raw["q_lora_rank"], o_groups=raw["o_groups"], o_lora_rank=raw["o_lora_rank"],
            sliding_window=raw["sliding_window"], ratios=ratios, csa_ratio=csa_ratio, num_hash_layers=num_hash_layers,
            index_num_heads=raw["index_n_heads"], index_head_dim=raw["index_head_dim"], index_topk=raw["index_topk"],
            num_experts=raw["n_routed_experts"], experts_per_token=raw["num_experts_per_tok"],
            route_scale=raw["routed_scaling_factor"], swiglu_limit=raw["swiglu_limit"], hc_mult=raw["hc_mult"],
            hc_sinkhorn_iters=raw["hc_sinkhorn_iters"], hc_eps=raw["hc_eps"], norm_eps=raw.get("rms_norm_eps", 1e-6),
            rope_theta=float(raw["rope_theta"]), compress_rope_theta=float(raw["compress_rope_theta"]), yarn=yarn,
            fp8_block=tuple(block), dspark=_dspark(raw))

    def plain_frequencies(self) -> np.ndarray:
        """[rope_dim/2] of sliding-window layers, float64."""
        index = np.arange(self.rope_dim // 2)
        return self.rope_theta ** (-2 * index / self.rope_dim)

    def yarn_frequencies(self) -> np.ndarray:
        """[rope_dim/2] of compressed layers."""
        return yarn_frequencies(self.rope_dim, self.compress_rope_theta, self.yarn)


def _dspark(raw: dict) -> DsparkConfig | None:
    if "dspark_block_size" not in raw:
        return None
    return DsparkConfig(*(raw[f"dspark_{f.name}"] for f in fields(DsparkConfig)))


def yarn_frequencies(dim: int, theta: float, yarn: dict) -> np.ndarray:
    """YaRN blends f/factor and f over a ramp of the pair index; unit amplitude."""
    index = np.arange(dim // 2)

    def correction(rotations: float) -> float:
        return dim * math.log(yarn["original_max_position_embeddings"] / (2 * math.pi * rotations)) / (2 * math.log(theta))

    low = max(math.floor(correction(yarn["beta_fast"])), 0)
    high = min(math.ceil(correction(yarn["beta_slow"])), dim - 1)
    ramp = np.clip((index - low) / max(high - low, 1e-3), 0, 1)
    base = theta ** (-2 * index / dim)
    return base / yarn["factor"] * ramp + base * (1 - ramp)
