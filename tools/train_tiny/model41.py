"""DeepSeek-V4.1 in PyTorch: what it has of its own beside model.py, with the same four numerics.

Hyper-connections that mix a sub-layer's input with the weights of the one before, compressed entries and index keys that later
layers share, a selection kept until the next index source, candidate blocks, and n-gram tables. It has no hash routing, no
Hadamard matrix, no norm of query heads and no MTP block.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from config import Config, Rope
from functions import (
    BF16,
    distillation_loss,
    engram_mix,
    hc_apply_post,
    hc_apply_pre,
    index_scores,
    pool,
    rms_norm,
    rotate,
    sim4,
    sim4_entries,
    sim8_act32,
    teacher_distribution,
)
from linears import Linear, Numerics, Table, Weight, linear32
from model import Attention, Hyper, Model, MoE
from token_classes import table_primes

_STRIDE = 3  # one query in so many teaches the indexer


class Shared:
    """What layers of one pass leave for those after them."""

    def __init__(self, rows: list[Tensor]) -> None:
        self.rows = rows  # of each n-gram table, [tokens, rows a token]
        self.entries: Tensor | None = None
        self.keys: Tensor | None = None
        self.visible: Tensor | None = None     # [1,S,m]
        self.selected: Tensor | None = None    # [B,S,m]
        self.candidates: Tensor | None = None  # [B,S,m]
        self.scores: Tensor | None = None      # of the queries that teach, [B,S/stride,m]
        self.candidate_scores: Tensor | None = None  # the same, of the source of candidates
        self.teachers: list[Tensor] = []
        self.losses: list[Tensor] = []

    def finish(self) -> None:
        """An index source learns from all layers that use its selection, and the source of candidates from those that choose among them."""
        if self.teachers:
            teacher = sum(self.teachers) / len(self.teachers)
            for scores in (self.scores, self.candidate_scores):
                if scores is not None:
                    self.losses.append(distillation_loss(scores, teacher, self.visible[:, ::_STRIDE]))
        self.teachers = []


class Compressor(nn.Module):
    """Latents of groups of tokens: pooled by a softmax per channel, or of single tokens."""

    def __init__(self, config: Config, ratio: int) -> None:
        super().__init__()
        self.ratio, self.eps = ratio, config.rms_norm_eps
        self.wkv = Linear(config.head_dim, config.hidden_size, "bf16")
        if ratio > 1:
            self.wgate = Linear(config.head_dim, config.hidden_size, "bf16", 0.3)
        self.norm = Weight(torch.ones(config.head_dim))

    def forward(self, u: Tensor, numerics: Numerics) -> Tensor:
        """u [B,S,D] with S a multiple of the ratio -> [B,S/ratio,d] bf16"""
        if self.ratio == 1:
            return rms_norm(self.wkv(u, numerics), self.norm.weight, self.eps)
        values, scores = (linear32(u, w.weight).unflatten(1, (-1, self.ratio)) for w in (self.wkv, self.wgate))
        return rms_norm(pool(values, scores), self.norm.weight, self.eps)


class Indexer(nn.Module):
    """Keys in a KV source, scores in an index source. Trained by distillation only, so its inputs are detached."""

    def __init__(self, config: Config, makes_keys: bool, selects: bool) -> None:
        super().__init__()
        self.heads, self.dim, self.eps = config.index_n_heads, config.index_head_dim, config.rms_norm_eps
        if makes_keys:
            self.wk = Linear(self.dim, config.head_dim, "bf16")
            self.k_norm = Weight(torch.ones(self.dim))
        if selects:
            self.wq_b = Linear(self.heads * self.dim, config.q_lora_rank, config.dense)
            self.weights_proj = Linear(self.heads, config.hidden_size, "bf16")

    def keys(self, latents: Tensor, cos: Tensor, sin: Tensor, numerics: Numerics) -> Tensor:
        k = rotate(rms_norm(self.wk(latents.detach(), numerics), self.k_norm.weight, self.eps), cos, sin)
        return numerics.fake(k, sim4(k)) if numerics.simulate else k

    def forward(self, u: Tensor, qr: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, numerics: Numerics) -> Tensor:
        """Scores [B,S,m] of entries for the queries u [B,S,D] at the tables' positions."""
        u, qr = u.detach(), qr.detach()
        batch, length, _ = u.shape
        q = rotate(self.wq_b(qr, numerics).view(batch, length, self.heads, self.dim), cos[:, None], sin[:, None])
        if numerics.simulate:
            q = numerics.fake(q, sim4(q))
        weights, scale = self.weights_proj(u, numerics), self.dim**-0.5 * self.heads**-0.5
        if numerics.exact:
            weights = (weights.float() * scale).to(BF16)
            dots = torch.einsum("bshd,bmd->bshm", q.float(), keys.float()).to(BF16)
            return (torch.relu(dots) * weights[..., None]).float().sum(2).to(BF16).float()
        dots = (q.reshape(batch, length * self.heads, self.dim) @ keys.transpose(1, 2)).view(batch, length, self.heads, -1)
        return index_scores(dots, weights * scale)


class Attention41(Attention):
    """Its own window rows; entries of the last KV source, selected by the last index source."""

    def __init__(self, config: Config, layer: int, ratio: int) -> None:
        super().__init__(config, 0)
        self.ratio, self.layer = ratio, layer
        self.makes_entries = layer in config.kv_source_layer_ids
        self.selects = layer in config.index_source_layer_ids
        if self.makes_entries:
            self.compressor = Compressor(config, ratio)
        if self.makes_entries or self.selects:
            self.indexer = Indexer(config, self.makes_entries, self.selects)

    def forward(self, u: Tensor, rope: Rope, numerics: Numerics, shared: Shared) -> Tensor:
        length = u.shape[1]
        cos, sin = rope(self.ratio, 1, length)
        qr, q = self.queries(u, cos, sin, numerics)
        keys, lw, mask = self.window(q, self.rows(u, cos, sin, numerics), numerics)
        if not self.ratio:
            return self.output(self.attend(lw, None, keys, None, mask, None, numerics), cos, sin, numerics)
        if self.makes_entries:
            self._make_entries(u, rope, numerics, shared)
        if self.selects and (numerics.sparse or numerics.indexes):
            self._select(u, qr, cos, sin, numerics, shared)
        lc = self.entry_logits(q, shared.entries, numerics)
        if self.training and torch.is_grad_enabled() and numerics.indexes:
            with torch.no_grad():
                shared.teachers.append(teacher_distribution(
                    lw[:, ::_STRIDE], lc[:, ::_STRIDE], mask[::_STRIDE], shared.visible[:, ::_STRIDE], q.shape[-1]**-0.5))
        visible = shared.selected if numerics.sparse else shared.visible
        return self.output(self.attend(lw, lc, keys, shared.entries, mask, visible, numerics), cos, sin, numerics)

    def queries(self, u: Tensor, cos: Tensor, sin: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor]:
        qr = rms_norm(self.wq_a(u, numerics), self.q_norm.weight, self.config.rms_norm_eps)
        q = self.wq_b(qr, numerics).view(*u.shape[:2], self.config.num_attention_heads, self.config.head_dim)
        return qr, rotate(q, cos[..., None, :], sin[..., None, :])

    def _simulate_cache(self, x: Tensor, numerics: Numerics) -> Tensor:
        return numerics.fake(x, sim8_act32(x)) if numerics.simulate else x

    def _make_entries(self, u: Tensor, rope: Rope, numerics: Numerics, shared: Shared) -> None:
        shared.finish()
        latents = self.compressor(u, numerics)
        cos, sin = rope(self.ratio, self.ratio, latents.shape[1])
        entries = rotate(latents, cos, sin)
        shared.entries = numerics.fake(entries, sim4_entries(entries)) if numerics.simulate else entries
        if numerics.sparse or numerics.indexes:
            shared.keys = self.indexer.keys(latents, cos, sin, numerics)
        count = (torch.arange(u.shape[1], device=u.device) + 1) // self.ratio
        shared.visible = (torch.arange(latents.shape[1], device=u.device) < count[:, None])[None]

    def _select(self, u: Tensor, qr: Tensor, cos: Tensor, sin: Tensor, numerics: Numerics, shared: Shared) -> None:
        shared.finish()
        c = self.config
        chooses = 0 <= c.candidate_source_layer_id < self.layer
        if chooses and shared.candidate_scores is None:
            shared.candidate_scores = shared.scores  # of the index source before the first that chooses among candidates
        if self.training and torch.is_grad_enabled() and numerics.indexes:
            shared.scores = self.indexer(u[:, ::_STRIDE], qr[:, ::_STRIDE], cos[::_STRIDE], sin[::_STRIDE], shared.keys, numerics)
        if not numerics.sparse:
            return
        with torch.no_grad():
            scores = torch.where(shared.visible, self.indexer(u, qr, cos, sin, shared.keys, numerics), float("-inf"))
            if self.layer == c.candidate_source_layer_id:
                shared.candidates = self._candidates(scores, shared.visible, numerics.exact)
            elif chooses:
                scores = torch.where(shared.candidates, scores, float("-inf"))
            shared.selected = best(scores, c.index_topk, exact=numerics.exact) & (scores > float("-inf"))

    def _candidates(self, scores: Tensor, visible: Tensor, exact: bool) -> Tensor:
        """Rows of the best blocks for each query; the block of the newest visible row is always among them."""
        c, size = self.config, self.config.candidate_block_size
        blocks = F.pad(scores, (0, -scores.shape[-1] % size), value=float("-inf")).unflatten(-1, (-1, size)).amax(-1)
        newest = (visible.sum(-1, keepdim=True) - 1) // size
        blocks = torch.where(torch.arange(blocks.shape[-1], device=blocks.device) == newest, float("inf"), blocks)
        return best(blocks, c.candidate_topk_blocks, exact=exact).repeat_interleave(size, -1)[..., :scores.shape[-1]]


def best(scores: Tensor, count: int, *, exact: bool) -> Tensor:
    """Which of the last axis are the `count` largest; exact: of equal ones those in front, otherwise all of them."""
    if scores.shape[-1] <= count:
        return torch.ones_like(scores, dtype=torch.bool)
    if not exact:
        return scores >= scores.topk(count, -1, sorted=False).values.amin(-1, keepdim=True)
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True)


class NgramHash(nn.Module):
    """Rows of the n-gram tables that a text's tokens lead to. Constants alone."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.sizes = config.engram_max_ngram_size
        classes = torch.tensor(config.token_classes)
        primes = table_primes(config.engram_vocab_size, self.sizes - 1, config.engram_n_heads, len(config.engram_layer_ids))
        self.num_rows = [sum(map(sum, table)) for table in primes]
        bound = max(1, (2**63 - 1) // (int(classes.max()) + 1) // 2)
        draws = [np.random.default_rng(10007 * layer).integers(0, bound, self.sizes, dtype=np.int64)
                 for layer in config.engram_layer_ids]
        flat = torch.tensor(primes).flatten(1)
        for name, value in (("classes", classes), ("multipliers", torch.from_numpy(np.stack(draws)) * 2 + 1),
                            ("primes", torch.tensor(primes)), ("offsets", (flat.cumsum(1) - flat).view(len(primes), self.sizes - 1, -1))):
            self.register_buffer(name, value, persistent=False)
        self.pad = int(classes[config.engram_pad_token_id])

    def forward(self, ids: Tensor) -> list[Tensor]:
        """ids [B,S] -> for each table [B*S, (sizes - 1) * heads]"""
        before = F.pad(self.classes[ids], (self.sizes - 1, 0), value=self.pad)
        back = [before[:, self.sizes - 1 - k:before.shape[1] - k] for k in range(self.sizes)]
        tables = []
        for multipliers, primes, offsets in zip(self.multipliers, self.primes, self.offsets):
            value, rows = back[0] * multipliers[0], []
            for n in range(1, self.sizes):
                value = value ^ (back[n] * multipliers[n])
                rows.append(value.flatten()[:, None] % primes[n - 1] + offsets[n - 1])
            tables.append(torch.cat(rows, 1))
        return tables


class Engram(nn.Module):
    """Values of n-grams, added to each stream as far as its key fits."""

    def __init__(self, config: Config, num_rows: int) -> None:
        super().__init__()
        n, d = config.hc_mult, config.hidden_size
        self.eps = config.rms_norm_eps
        self.embed = Table(num_rows, config.engram_head_dim)
        self.wkv = Linear((n + 1) * d, (config.engram_max_ngram_size - 1) * config.engram_n_heads * config.engram_head_dim, config.dense)
        self.q_weight, self.k_weight = nn.Parameter(torch.ones(n, d)), nn.Parameter(torch.ones(n, d))

    def forward(self, streams: Tensor, rows: Tensor, numerics: Numerics) -> Tensor:
        """streams [T,n,D], rows [T,R]"""
        z = self.wkv(self.embed(rows, numerics).flatten(1), numerics).view(streams.shape[0], -1, streams.shape[-1])
        weight = self.q_weight.to(BF16).float() * self.k_weight.to(BF16).float()
        return engram_mix(streams, z[:, :-1], z[:, -1], weight, self.eps)


def first_mix(streams: Tensor) -> Tensor:
    """Weights [T,n] of the first mix of streams [T,n,D], which are all the same then: the first one alone."""
    pre = torch.zeros(streams.shape[:2], device=streams.device)
    pre[:, 0] = 1
    return pre


class Block41(nn.Module):
    """Attention then MoE. Each takes the streams mixed by the weights of the sub-layer before, and leaves its own."""

    def __init__(self, config: Config, layer: int, num_rows: int = 0) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        if num_rows:
            self.engram = Engram(config, num_rows)
            self.table = config.engram_layer_ids.index(layer)
        self.attn_norm = Weight(torch.ones(config.hidden_size))
        self.ffn_norm = Weight(torch.ones(config.hidden_size))
        self.hc_attn, self.hc_ffn = Hyper(config), Hyper(config)
        self.attn = Attention41(config, layer, config.compress_ratios[layer])
        self.ffn = MoE(config, layer, "mxfp4")

    def forward(self, streams: Tensor, pre: Tensor, ids: Tensor, rope: Rope, numerics: Numerics, shared: Shared,
                taps: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """streams [B*S,n,D], pre [B*S,n], ids [B,S] -> both after the layer; `taps` gets the mean of its input."""
        if hasattr(self, "engram"):
            streams = self.engram(streams, shared.rows[self.table], numerics)
        if taps is not None:
            taps.append(streams.float().mean(1).to(BF16))
        own, post, comb = self.hc_attn.mix(streams, exact=numerics.exact)
        u = rms_norm(hc_apply_pre(streams, pre), self.attn_norm.weight, self.eps).view(*ids.shape, -1)
        streams = hc_apply_post(self.attn(u, rope, numerics, shared).flatten(0, 1), streams, post, comb)
        return self.feed_forward(streams, own, ids, numerics)

    def feed_forward(self, streams: Tensor, own: Tensor, ids: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor]:
        """The second half; `own` [B*S,n] are the weights that attention's mix left."""
        following, post, comb = self.hc_ffn.mix(streams, exact=numerics.exact)
        u = rms_norm(hc_apply_pre(streams, own), self.ffn_norm.weight, self.eps)
        return hc_apply_post(self.ffn(u, ids.flatten(), numerics), streams, post, comb), following


class Model41(Model):
    """The trunk and its head. Lengths must be multiples of the window, as in model.py."""

    def __init__(self, config: Config) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.embed = Weight(torch.randn(config.vocab_size, config.hidden_size) * 0.5)
        self.head = Weight(torch.randn(config.vocab_size, config.hidden_size) * 0.01)
        self.norm = Weight(torch.ones(config.hidden_size))
        self.hash = NgramHash(config) if config.engram_layer_ids else None
        rows = dict(zip(config.engram_layer_ids, self.hash.num_rows)) if self.hash else {}
        self.layers = nn.ModuleList(Block41(config, i, rows.get(i, 0)) for i in range(config.num_hidden_layers))
        self.distillation: Tensor | None = None
        self._rope: Rope | None = None
        self._rope_length = 0

    def trunk(self, ids: Tensor, numerics: Numerics, trace: list[Tensor] | None = None) -> Tensor:
        """ids [B,S] -> the streams' mix [B*S,D] in front of the last norm; `trace` gets what a drafter taps of each layer."""
        shared = Shared(self.hash(ids) if self.hash else [])
        rope = self.rope(ids.shape[1])
        streams = F.embedding(ids.flatten(), self.embed.weight.to(BF16))[:, None, :].expand(-1, self.config.hc_mult, -1).contiguous()
        pre = first_mix(streams)
        for layer in self.layers:
            streams, pre = layer(streams, pre, ids, rope, numerics, shared, trace)
        shared.finish()
        self.distillation = torch.stack(shared.losses).mean() if shared.losses else streams.new_zeros((), dtype=torch.float32)
        return hc_apply_pre(streams, pre)

    def distillation_loss(self) -> Tensor:
        return self.distillation

    def hidden(self, streams: Tensor) -> Tensor:
        return rms_norm(streams, self.norm.weight, self.config.rms_norm_eps)


def build(config: Config) -> Model:
    """A model of the architecture that the configuration is of."""
    return Model41(config) if config.is_v41 else Model(config)
