"""The configuration of a model of V4 or V4.1, and the rotary tables that follow from it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from token_classes import token_classes


@dataclass
class Config:
    """The fields of config.json that the model needs. Those from `gate_temp` on are V4.1's, whose file may nest them."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    compress_ratios: list[int]
    compress_rope_theta: float
    rope_theta: float
    rope_scaling: dict[str, Any]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    routed_scaling_factor: float
    swiglu_limit: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    rms_norm_eps: float
    num_hash_layers: int = 0
    gate_temp: float = 1.0
    kv_source_layer_ids: list[int] = field(default_factory=list)
    index_source_layer_ids: list[int] = field(default_factory=list)
    candidate_source_layer_id: int = -1
    candidate_topk_blocks: int = 0
    candidate_block_size: int = 8
    engram_layer_ids: list[int] = field(default_factory=list)
    engram_vocab_size: int = 0
    engram_max_ngram_size: int = 0
    engram_n_heads: int = 0
    engram_head_dim: int = 0
    engram_pad_token_id: int = 2
    token_classes: list[int] = field(default_factory=list)  # from tokenizer.json, not from config.json

    @property
    def is_v41(self) -> bool:
        return bool(self.kv_source_layer_ids)

    @property
    def dense(self) -> str:
        """The stored format of dense linears."""
        return "mxfp8" if self.is_v41 else "fp8"

    @property
    def activation_group(self) -> int:
        """Elements of a linear's input that share a scale."""
        return 32 if self.is_v41 else 128

    @staticmethod
    def load(path: Path) -> Config:
        raw = json.loads(path.read_text(encoding="utf-8"))
        raw = raw.get("text_config", raw)
        config = Config(**{f.name: raw[f.name] for f in fields(Config) if f.name in raw})
        if config.engram_layer_ids:
            config.token_classes = token_classes(path.parent / "tokenizer.json", config.vocab_size)
        return config


class Rope:
    """9: cos and sin tables of both kinds of layer, for positions 0..length-1."""

    def __init__(self, config: Config, length: int, device: torch.device) -> None:
        dim = config.qk_rope_head_dim
        i = torch.arange(dim // 2, dtype=torch.float64)
        plain = float(config.rope_theta) ** (-2 * i / dim)
        theta, yarn = float(config.compress_rope_theta), config.rope_scaling

        def correction(turns: float) -> float:
            return dim * math.log(yarn["original_max_position_embeddings"] / (2 * math.pi * turns)) / (2 * math.log(theta))

        low = max(math.floor(correction(yarn["beta_fast"])), 0)
        high = min(math.ceil(correction(yarn["beta_slow"])), dim - 1)
        ramp = ((i - low) / max(high - low, 1e-3)).clamp(0, 1)
        f = theta ** (-2 * i / dim)
        scaled = f / yarn["factor"] * ramp + f * (1 - ramp)
        position = torch.arange(length, dtype=torch.float32)
        self.tables = []
        for frequency in (plain, scaled):
            angle = (position[:, None] * frequency.float()[None]).double()
            self.tables.append((angle.cos().float().to(device), angle.sin().float().to(device)))

    def __call__(self, ratio: int, step: int = 1, count: int | None = None) -> tuple[Tensor, Tensor]:
        """Tables at positions 0, step, 2*step, ... of a layer with this compress ratio."""
        cos, sin = self.tables[1 if ratio else 0]
        return cos[::step][:count], sin[::step][:count]
