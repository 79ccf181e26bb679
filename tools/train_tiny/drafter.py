"""The DSpark drafter in PyTorch: one pass drafts a block of tokens from the trunk's last layers.

Taps (the output of chosen trunk layers, mean over the residual streams) become one row `main_x` a token. Of the context, the
stages see nothing but keys made of it. A block is the anchor (the last known token) and noise ids; its rows see the last
`sliding_window` rows in front of the anchor and all of the block, both ways. The Markov head adds a low-rank term of the token
before each row. The confidence head says how likely the row's draft is accepted if those before it were.

Blocks of several texts are computed together, as many of each, wherever their anchors stand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from config import Config, Rope
from functions import BF16, hc_apply_post, hc_apply_pre, rms_norm, window_probabilities
from linears import Linear, Numerics, Weight
from model import Attention, Block, HyperHead, Model
from model41 import Block41, first_mix


@dataclass
class DraftConfig:
    """The `dspark_*` keys of config.json, and the number of stages, which the release shows by its tensors alone."""

    block_size: int
    noise_token_id: int
    markov_rank: int
    target_layer_ids: list[int]
    stages: int = 3
    n_routed_experts: int = 0  # of V4.1's drafter; 0: as many as a layer of the trunk
    num_experts_per_tok: int = 0

    @staticmethod
    def load(path: Path) -> DraftConfig:
        raw = json.loads(path.read_text(encoding="utf-8"))
        raw = raw.get("text_config", raw)
        names = ("block_size", "noise_token_id", "markov_rank", "target_layer_ids", "n_routed_experts", "num_experts_per_tok")
        return DraftConfig(**{name: raw[f"dspark_{name}"] for name in names if f"dspark_{name}" in raw})

    def keys(self) -> dict[str, object]:
        names = ["block_size", "noise_token_id", "markov_rank", "target_layer_ids"]
        names += ["n_routed_experts", "num_experts_per_tok"] if self.n_routed_experts else []
        return {f"dspark_{name}": getattr(self, name) for name in names}


@dataclass
class Blocks:
    """Where blocks stand in texts of `length` tokens: a block's rows at its anchor + (0 ... size - 1)."""

    anchors: Tensor  # [texts, blocks], int64
    size: int
    length: int

    @property
    def count(self) -> int:
        """Blocks of a text."""
        return self.anchors.shape[1]

    def positions(self) -> Tensor:
        """[texts, count * size]"""
        return (self.anchors[..., None] + torch.arange(self.size, device=self.anchors.device)).flatten(1)

    def pick(self, rows: Tensor) -> Tensor:
        """rows [texts, length, D] -> those of all blocks, [texts * count * size, D]."""
        places = self.positions() + rows.shape[1] * torch.arange(rows.shape[0], device=rows.device)[:, None]
        return rows.flatten(0, 1)[places.flatten()]


def attend(attention: Attention, u: Tensor, main_x: Tensor, blocks: Blocks, rope: Rope, numerics: Numerics) -> Tensor:
    """Attention of a stage: its rows see context rows and the whole of their draft block."""
    config = attention.config
    batch, rows, _ = u.shape
    heads, dim, window = config.num_attention_heads, config.head_dim, config.sliding_window
    cos, sin = rope(0, 1, blocks.length)
    positions = blocks.positions()
    block_cos, block_sin = cos[positions], sin[positions]
    _, q = attention.queries(u, block_cos, block_sin, numerics)
    own = attention.rows(u, block_cos, block_sin, numerics).view(batch, blocks.count, blocks.size, dim)
    context = F.pad(attention.rows(main_x, cos, sin, numerics), (0, 0, window, 0))
    # row w of a block's window is position anchor - window + w, which in the padded rows is anchor + w
    first = blocks.anchors + context.shape[1] * torch.arange(batch, device=u.device)[:, None]
    places = first[..., None] + torch.arange(window, device=u.device)
    keys = torch.cat([F.embedding(places, context.flatten(0, 1)), own], 2)
    column = torch.arange(window + blocks.size, device=u.device)
    mask = blocks.anchors[..., None] - window + column >= 0
    mask = mask.repeat_interleave(blocks.size, 1)

    widen = (lambda x: x.float()) if numerics.exact else (lambda x: x)
    shape = (batch, blocks.count, blocks.size * heads)
    logits = (widen(q).view(*shape, dim) @ widen(keys).transpose(2, 3)).view(batch, rows, heads, -1)
    if numerics.exact:
        o = attention.attend_exact(logits, None, keys, None, mask, None, dim**-0.5)
    else:
        p = window_probabilities(logits, attention.attn_sink, mask, dim**-0.5)
        o = (p.view(*shape, -1) @ keys).view(batch, rows, heads, dim)
    return attention.output(o, block_cos, block_sin, numerics)


class Stage(Block):
    """A block of V4 whose attention is a drafter's."""

    def draft(self, streams: Tensor, ids: Tensor, main_x: Tensor, blocks: Blocks, rope: Rope, numerics: Numerics) -> Tensor:
        """streams [B*S,n,D], ids [B,S] with S = count * size rows of blocks; main_x [B,length,D]."""
        eps = self.config.rms_norm_eps
        u, post, comb = self.hc_attn(streams)
        u = rms_norm(u, self.attn_norm.weight, eps).view(*ids.shape, -1)
        streams = hc_apply_post(attend(self.attn, u, main_x, blocks, rope, numerics).flatten(0, 1), streams, post, comb)
        u, post, comb = self.hc_ffn(streams)
        u = rms_norm(u, self.ffn_norm.weight, eps)
        return hc_apply_post(self.ffn(u, ids.flatten(), numerics), streams, post, comb)


class Stage41(Block41):
    """A block of V4.1 whose attention is a drafter's."""

    def draft(self, streams: Tensor, pre: Tensor, ids: Tensor, main_x: Tensor, blocks: Blocks, rope: Rope, numerics: Numerics
              ) -> tuple[Tensor, Tensor]:
        """As Stage.draft, with the weights [B*S,n] that the stage before leaves for the next mix."""
        own, post, comb = self.hc_attn.mix(streams, exact=numerics.exact)
        u = rms_norm(hc_apply_pre(streams, pre), self.attn_norm.weight, self.eps).view(*ids.shape, -1)
        streams = hc_apply_post(attend(self.attn, u, main_x, blocks, rope, numerics).flatten(0, 1), streams, post, comb)
        return self.feed_forward(streams, own, ids, numerics)


class Drafter(nn.Module):
    """The tensors `mtp.0` to `mtp.2` of a release with DSpark; embedding and head are the trunk's."""

    def __init__(self, config: Config, draft: DraftConfig) -> None:
        super().__init__()
        self.config, self.draft_config = config, draft
        d, rank = config.hidden_size, draft.markov_rank
        self.main_proj = Linear(d, d * len(draft.target_layer_ids), config.dense)
        self.main_norm, self.norm = Weight(torch.ones(d)), Weight(torch.ones(d))
        layers = config.num_hidden_layers
        if config.is_v41:
            own = replace(config, n_routed_experts=draft.n_routed_experts or config.n_routed_experts,
                          num_experts_per_tok=draft.num_experts_per_tok or config.num_experts_per_tok,
                          compress_ratios=[*config.compress_ratios[:layers], 0])
            self.stages = nn.ModuleList(Stage41(own, layers) for _ in range(draft.stages))
        else:
            self.stages = nn.ModuleList(Stage(config, layers, "mxfp4") for _ in range(draft.stages))
            self.hc_head = HyperHead(config)
        self.markov_w1 = Weight(0.5 * torch.randn(config.vocab_size, rank))
        self.markov_w2 = Weight(torch.zeros(config.vocab_size, rank))
        self.confidence = Weight(torch.zeros(1, d + rank))

    def hidden(self, model: Model, taps: Tensor, ids: Tensor, blocks: Blocks, numerics: Numerics) -> Tensor:
        """taps [B,length,taps*D], ids [B,>=length] -> [B,count*size,D], in front of the norm."""
        block_ids = torch.full((ids.shape[0], blocks.count, blocks.size), self.draft_config.noise_token_id, device=ids.device)
        block_ids[:, :, 0] = ids.gather(1, blocks.anchors)
        block_ids = block_ids.flatten(1)
        main_x = rms_norm(self.main_proj(taps, numerics), self.main_norm.weight, self.config.rms_norm_eps)
        embedded = F.embedding(block_ids.flatten(), model.embed.weight.to(BF16))
        streams = embedded[:, None, :].expand(-1, self.config.hc_mult, -1).contiguous()
        rope = model.rope(blocks.length)
        if self.config.is_v41:
            pre = first_mix(streams)
            for stage in self.stages:
                streams, pre = stage.draft(streams, pre, block_ids, main_x, blocks, rope, numerics)
            return hc_apply_pre(streams, pre).view(*block_ids.shape, -1)
        for stage in self.stages:
            streams = stage.draft(streams, block_ids, main_x, blocks, rope, numerics)
        return self.hc_head(streams).view(*block_ids.shape, -1)

    def base_logits(self, model: Model, hidden: Tensor, numerics: Numerics) -> Tensor:
        """[..., D] -> [..., V], without the Markov term."""
        return model.project(rms_norm(hidden, self.norm.weight, self.config.rms_norm_eps), numerics)

    def markov(self, previous: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor]:
        """ids [...] of the tokens before each row -> (embedding [..., rank], term added to the logits [..., V])."""
        embedded = F.embedding(previous, self.markov_w1.weight.to(BF16))
        w2 = self.markov_w2.weight.to(BF16)
        return embedded, F.linear(embedded.float(), w2.float()) if numerics.exact else F.linear(embedded, w2)

    def confidence_logits(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """[...]: the chance of acceptance is their sigmoid."""
        return F.linear(torch.cat([hidden, embedded], -1).float(), self.confidence.weight).squeeze(-1)


def taps(trace: list[Tensor], draft: DraftConfig, batch: int) -> Tensor:
    """Streams after every trunk layer, each [B*S,n,D], or V4.1's means in front of it, [B*S,D] -> [B,S,taps*D]."""
    means = [trace[layer] for layer in draft.target_layer_ids]
    means = [m.float().mean(1).to(BF16) if m.ndim == 3 else m for m in means]
    return torch.cat(means, -1).view(batch, -1, means[0].shape[-1] * len(means))
