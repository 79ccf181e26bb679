"""DeepSeek-V4 in PyTorch, for training the small model and for judging it as shipped.

One forward pass, four numerics:
  train    bf16 matrix products, no simulated quantisation
  qat      the same with straight-through fake quantisation of weights, activations and caches
  plain    weights rounded to bf16, no simulated quantisation (the "BF16" of the model card)
  release  every rounding point of the release, fp32 accumulation; weights must already hold their stored values
`train` and `qat` run all experts as one masked wide MLP, which is the same sum; the others run experts one by one.
Attention is dense with masks: each block of `sliding_window` queries meets its own and the previous block of window keys,
and all compressed entries. Written from the architecture specification; section numbers are its own.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quant
from config import Config, Rope
from functions import (
    BF16,
    distillation_loss,
    hc_apply_post,
    hc_apply_pre,
    hc_inverse_rms,
    hc_split,
    head_norm,
    head_norm_release,
    index_scores,
    pool,
    probabilities,
    rms_norm,
    rotate,
    sim4,
    sim8_kv,
    swiglu,
    swiglu_routed,
    teacher_distribution,
    window_probabilities,
)
from linears import Linear, Numerics, Table, Weight, linear32, simulate_input
from sinkhorn import sinkhorn


class Compressor(nn.Module):
    """6: pools `ratio` tokens into one entry of width `dim`; ratio 4 also looks at the block before."""

    def __init__(self, config: Config, ratio: int, dim: int) -> None:
        super().__init__()
        width = dim * (2 if ratio == 4 else 1)
        self.ratio, self.dim, self.eps = ratio, dim, config.rms_norm_eps
        self.wkv = Linear(width, config.hidden_size, "bf16")
        self.wgate = Linear(width, config.hidden_size, "bf16", 0.3)
        self.ape = nn.Parameter(torch.zeros(ratio, width))
        self.norm = Weight(torch.ones(dim))

    def forward(self, u: Tensor, rope: Rope) -> Tensor:
        """u [B,S,D] with S a multiple of the ratio -> entries [B,S/ratio,dim] bf16, rotated, not quantised."""
        batch, length, _ = u.shape
        blocks, r, d = length // self.ratio, self.ratio, self.dim
        a = linear32(u, self.wkv.weight).view(batch, blocks, r, -1)
        b = linear32(u, self.wgate.weight).view(batch, blocks, r, -1) + self.ape
        if r == 4:
            before_a = F.pad(a[:, :-1, :, :d], (0, 0, 0, 0, 1, 0))
            before_b = F.pad(b[:, :-1, :, :d], (0, 0, 0, 0, 1, 0), value=float("-inf"))
            a = torch.cat([before_a, a[..., d:]], 2)
            b = torch.cat([before_b, b[..., d:]], 2)
        entry = rms_norm(pool(a, b), self.norm.weight, self.eps)
        return rotate(entry, *rope(r, r, blocks))


class Indexer(nn.Module):
    """7: scores compressed entries for each query. Trained by distillation only, so its inputs are detached."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.dim = config.index_n_heads, config.index_head_dim
        self.wq_b = Linear(self.heads * self.dim, config.q_lora_rank, "fp8")
        self.weights_proj = Linear(self.heads, config.hidden_size, "bf16")
        self.compressor = Compressor(config, 4, self.dim)

    def forward(self, u: Tensor, qr: Tensor, rope: Rope, numerics: Numerics) -> Tensor:
        u, qr = u.detach(), qr.detach()
        batch, length, _ = u.shape
        cos, sin = rope(4, 1, length)
        q = rotate(self.wq_b(qr, numerics).view(batch, length, self.heads, self.dim), cos[:, None], sin[:, None])
        k = self.compressor(u, rope)
        if numerics.simulate:
            matrix = quant.hadamard(self.dim, u.device)
            q, k = (x.float().matmul(matrix).to(BF16) for x in (q, k))
            q, k = numerics.fake(q, sim4(q)), numerics.fake(k, sim4(k))
        weights = self.weights_proj(u, numerics)
        if numerics.exact:
            scale = self.dim**-0.5 * self.heads**-0.5
            weights = (weights.float() * scale).to(BF16)
            dots = torch.einsum("bshd,bmd->bshm", q.float(), k.float()).to(BF16)
            return (torch.relu(dots) * weights[..., None]).float().sum(2).to(BF16).float()
        weights = weights * (self.dim**-0.5 * self.heads**-0.5)
        dots = (q.reshape(batch, length * self.heads, self.dim) @ k.transpose(1, 2)).view(batch, length, self.heads, -1)
        return index_scores(dots, weights)


class Attention(nn.Module):
    """5: low-rank queries, one key-value head (K = V), window and compressed keys, sink, grouped low-rank output."""

    def __init__(self, config: Config, ratio: int) -> None:
        super().__init__()
        self.config, self.ratio = config, ratio
        heads, dim, hidden = config.num_attention_heads, config.head_dim, config.hidden_size
        self.wq_a = Linear(config.q_lora_rank, hidden, config.dense)
        self.q_norm = Weight(torch.ones(config.q_lora_rank))
        self.wq_b = Linear(heads * dim, config.q_lora_rank, config.dense)
        self.wkv = Linear(dim, hidden, config.dense)
        self.kv_norm = Weight(torch.ones(dim))
        self.wo_a = Linear(config.o_groups * config.o_lora_rank, heads // config.o_groups * dim, config.dense)
        self.wo_b = Linear(hidden, config.o_groups * config.o_lora_rank, config.dense, 0.25)
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        if ratio:
            self.compressor = Compressor(config, ratio, dim)
        if ratio == 4:
            self.indexer = Indexer(config)
        self.distillation: Tensor | None = None

    def forward(self, u: Tensor, rope: Rope, numerics: Numerics) -> Tensor:
        length = u.shape[1]
        cos, sin = rope(self.ratio, 1, length)
        qr, q = self.queries(u, cos, sin, numerics)
        keys, lw, mask = self.window(q, self.rows(u, cos, sin, numerics), numerics)
        lc = entries = visible = None
        if self.ratio:
            entries = self._simulate_cache(self.compressor(u, rope), numerics)
            lc = self.entry_logits(q, entries, numerics)
            count = (torch.arange(length, device=u.device) + 1) // self.ratio
            visible = (torch.arange(entries.shape[1], device=u.device) < count[:, None])[None]
            if self.ratio == 4:
                visible = self._select(u, qr, rope, numerics, lw, lc, mask, visible, self.config.head_dim**-0.5)
        return self.output(self.attend(lw, lc, keys, entries, mask, visible, numerics), cos, sin, numerics)

    def window(self, q: Tensor, kv: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor, Tensor]:
        """Keys of the own and the previous block [B,blocks,2W,d], logits over them [B,S,H,2W], and which count [S,2W]."""
        batch, length, heads, dim = q.shape
        window = self.config.sliding_window
        blocks = length // window
        by_block = kv.view(batch, blocks, window, dim)
        keys = torch.cat([F.pad(by_block[:, :-1], (0, 0, 0, 0, 1, 0)), by_block], 2)
        position = torch.arange(length, device=q.device)
        column = torch.arange(2 * window, device=q.device)
        inner = position[:, None] % window
        mask = (column > inner) & (column <= inner + window) & ((column >= window) | (position[:, None] >= window))

        queries, wide = q.view(batch, blocks, window * heads, dim), keys
        if numerics.exact:
            queries, wide = queries.float(), keys.float()
        return keys, (queries @ wide.transpose(2, 3)).view(batch, length, heads, 2 * window), mask

    def entry_logits(self, q: Tensor, entries: Tensor, numerics: Numerics) -> Tensor:
        """q [B,S,H,d], entries [B,m,d] -> [B,S,H,m]"""
        batch, length, heads, dim = q.shape
        if numerics.exact:
            q, entries = q.float(), entries.float()
        return (q.reshape(batch, length * heads, dim) @ entries.transpose(1, 2)).view(batch, length, heads, -1)

    def attend(self, lw: Tensor, lc: Tensor | None, keys: Tensor, entries: Tensor | None, mask: Tensor,
               visible: Tensor | None, numerics: Numerics) -> Tensor:
        """5.4: heads [B,S,H,d] from both kinds of logits."""
        batch, length, heads, _ = lw.shape
        scale, by_block = keys.shape[-1]**-0.5, (batch, keys.shape[1], -1, lw.shape[-1])
        if numerics.exact:
            return self.attend_exact(lw, lc, keys, entries, mask, visible, scale)
        if entries is None:
            p = window_probabilities(lw, self.attn_sink, mask, scale)
            return (p.view(by_block) @ keys).view(batch, length, heads, -1)
        pw, pc = probabilities(lw, lc, self.attn_sink, mask, visible, scale)
        return (pw.view(by_block) @ keys).view(batch, length, heads, -1) + \
            (pc.view(batch, length * heads, -1) @ entries).view(batch, length, heads, -1)

    def queries(self, u: Tensor, cos: Tensor, sin: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor]:
        """5.1: u [B,S,D] -> the low-rank part [B,S,q_lora], which the indexer reads too, and queries [B,S,H,d]."""
        c, eps = self.config, self.config.rms_norm_eps
        qr = rms_norm(self.wq_a(u, numerics), self.q_norm.weight, eps)
        q = self.wq_b(qr, numerics).view(*u.shape[:2], c.num_attention_heads, c.head_dim)
        q = head_norm_release(q, eps) if numerics.name == "release" else head_norm(q, eps)
        return qr, rotate(q, cos[..., None, :], sin[..., None, :])

    def rows(self, u: Tensor, cos: Tensor, sin: Tensor, numerics: Numerics) -> Tensor:
        """5.2: u [B,S,D] -> rows [B,S,d] as the cache holds them, keys and values in one."""
        row = rms_norm(self.wkv(u, numerics), self.kv_norm.weight, self.config.rms_norm_eps)
        return self._simulate_cache(rotate(row, cos, sin), numerics)

    def _simulate_cache(self, x: Tensor, numerics: Numerics) -> Tensor:
        if not numerics.simulate:
            return x
        nope = self.config.head_dim - self.config.qk_rope_head_dim
        part = x[..., :nope].contiguous()
        return torch.cat([numerics.fake(part, sim8_kv(part)), x[..., nope:]], -1)

    def output(self, o: Tensor, cos: Tensor, sin: Tensor, numerics: Numerics) -> Tensor:
        """5.5: heads [B,S,H,d] turned back, then the grouped low-rank projection to [B,S,D]."""
        c = self.config
        o = rotate(o, cos[..., None, :], -sin[..., None, :])
        grouped = o.reshape(*o.shape[:2], c.o_groups, -1)
        w = self.wo_a.used(numerics).view(c.o_groups, c.o_lora_rank, -1)
        if numerics.exact:
            z = torch.einsum("bsgk,grk->bsgr", grouped.float(), w.float()).to(BF16)
        else:
            z = torch.einsum("bsgk,grk->bsgr", grouped, w.to(BF16))
        return self.wo_b(z.flatten(2), numerics)

    def _select(self, u: Tensor, qr: Tensor, rope: Rope, numerics: Numerics, lw: Tensor, lc: Tensor, mask: Tensor,
                visible: Tensor, scale: float) -> Tensor:
        """The entries each query may see: all visible ones, or the indexer's top-k when `numerics.sparse`."""
        training = self.training and torch.is_grad_enabled()
        if not numerics.sparse and not training:
            return visible
        scores = self.indexer(u, qr, rope, numerics)
        if training:
            with torch.no_grad():
                teacher = teacher_distribution(lw, lc, mask, visible, scale)
            self.distillation = distillation_loss(scores, teacher, visible)
        k = self.config.index_topk
        if not numerics.sparse or scores.shape[-1] <= k:
            return visible
        ranked = torch.where(visible, scores.detach(), float("-inf"))
        if training:
            threshold = ranked.topk(k, -1).values[..., -1:]
            return visible & (ranked >= threshold)
        order = ranked.sort(dim=-1, descending=True, stable=True).indices[..., :k]
        chosen = torch.zeros_like(ranked, dtype=torch.bool).scatter_(-1, order, True)
        return visible & chosen

    def attend_exact(self, lw: Tensor, lc: Tensor | None, keys: Tensor, entries: Tensor | None, mask: Tensor,
                      visible: Tensor | None, scale: float) -> Tensor:
        """5.4 with the release's roundings: bf16 exponentials in the product, un-rounded ones in the sum."""
        batch, length, heads, _ = lw.shape
        w = torch.where(mask[..., None, :], lw * scale, float("-inf"))
        top = w.amax(-1, keepdim=True)
        if lc is not None:
            c = torch.where(visible[:, :, None, :], lc * scale, float("-inf"))
            top = torch.maximum(top, c.amax(-1, keepdim=True))
        e = torch.exp(w - top)
        z = e.sum(-1, keepdim=True) + torch.exp(self.attn_sink[:, None] - top)
        shape = (batch, keys.shape[1], -1, e.shape[-1])
        o = (e.to(BF16).float().view(shape) @ keys.float()).view(batch, length, heads, -1)
        if lc is not None:
            ec = torch.exp(c - top)
            z = z + ec.sum(-1, keepdim=True)
            o = o + (ec.to(BF16).float().view(batch, length * heads, -1) @ entries.float()).view(o.shape)
        return (o / z).to(BF16)


class Experts(nn.Module):
    """Stacked routed experts; the export splits them into the release's per-expert tensors."""

    def __init__(self, config: Config, form: str) -> None:
        super().__init__()
        e, i, d = config.n_routed_experts, config.moe_intermediate_size, config.hidden_size
        self.form = form
        self.w1 = nn.Parameter(torch.randn(e, i, d) * d**-0.5)
        self.w3 = nn.Parameter(torch.randn(e, i, d) * d**-0.5)
        self.w2 = nn.Parameter(torch.randn(e, d, i) * 0.25 * i**-0.5)

    def stored(self) -> tuple[Tensor, Tensor, Tensor]:
        """w1, w3, w2 as the stored format decodes them."""
        if self.form == "mxfp4":
            return tuple(quant.mxfp4_weight(w) for w in (self.w1, self.w3, self.w2))
        g13, g2 = quant.nvfp4_global_scale(self.w1, self.w3), quant.nvfp4_global_scale(self.w2)
        return (quant.nvfp4_weight(self.w1, g13), quant.nvfp4_weight(self.w3, g13), quant.nvfp4_weight(self.w2, g2))


class SharedExpert(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        i, d = config.moe_intermediate_size, config.hidden_size
        self.w1 = Linear(i, d, config.dense)
        self.w3 = Linear(i, d, config.dense)
        self.w2 = Linear(d, i, config.dense, 0.25)

    def forward(self, x: Tensor, limit: float, numerics: Numerics) -> Tensor:
        h = swiglu(self.w1(x, numerics), self.w3(x, numerics), limit)
        return self.w2(h.to(BF16), numerics)


class Gate(nn.Module):
    """8.1: square root of softplus; hash layers take the experts from a table and only the weights from the scores."""

    def __init__(self, config: Config, hashed: bool, seed: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.randn(config.n_routed_experts, config.hidden_size) * 0.02)
        if hashed:
            self.register_buffer("tid2eid", hash_table(config, seed))
        else:
            self.register_buffer("bias", torch.zeros(config.n_routed_experts))
            self.register_buffer("load", torch.zeros(config.n_routed_experts), persistent=False)

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """x [T,D], ids [T] -> expert indices [T,k], weights [T,k] fp32."""
        t = torch.sqrt(F.softplus(linear32(x, self.weight) / self.config.gate_temp))
        if hasattr(self, "tid2eid"):
            chosen = self.tid2eid[ids]
        else:
            ranked = (t + self.bias).detach()
            chosen = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :self.config.num_experts_per_tok]
            if self.training:
                self.load.zero_().scatter_add_(0, chosen.flatten(), torch.ones_like(chosen.flatten(), dtype=torch.float32))
        g = t.gather(1, chosen)
        return chosen, g / g.sum(1, keepdim=True) * self.config.routed_scaling_factor


def hash_table(config: Config, seed: int) -> Tensor:
    """A fixed seeded assignment of token ids to experts in which every expert serves equally many ids."""
    generator = torch.Generator().manual_seed(seed)
    e, k = config.n_routed_experts, config.num_experts_per_tok
    shift = torch.stack([torch.randperm(e - 1, generator=generator)[:k - 1] + 1 for _ in range(config.vocab_size)])
    first = torch.randperm(config.vocab_size, generator=generator) % e
    return torch.cat([first[:, None], (first[:, None] + shift) % e], 1)


class MoE(nn.Module):
    def __init__(self, config: Config, layer: int, form: str) -> None:
        super().__init__()
        self.config = config
        self.gate = Gate(config, layer < config.num_hash_layers, 1000 + layer)
        self.experts = Experts(config, form)
        self.shared_experts = SharedExpert(config)

    def forward(self, x: Tensor, ids: Tensor, numerics: Numerics) -> Tensor:
        c, limit = self.config, self.config.swiglu_limit
        chosen, g = self.gate(x, ids)
        shared = self.shared_experts(x, limit, numerics)
        if numerics.exact:
            return (self._one_by_one(x, chosen, g, numerics) + shared.float()).to(BF16)
        weights = torch.zeros(x.shape[0], c.n_routed_experts, device=x.device).scatter(1, chosen, g)
        w1, w3, w2 = self.experts.w1, self.experts.w3, self.experts.w2
        xq = x
        if numerics.name == "qat":
            w1, w3, w2 = (quant.ste(w, q) for w, q in zip((w1, w3, w2), self.experts.stored()))
            if self.experts.form == "mxfp4":
                xq = quant.ste(x, simulate_input(x, c.activation_group))
        gate = F.linear(xq, w1.flatten(0, 1).to(BF16)).view(-1, c.n_routed_experts, c.moe_intermediate_size)
        up = F.linear(xq, w3.flatten(0, 1).to(BF16)).view(-1, c.n_routed_experts, c.moe_intermediate_size)
        h = swiglu_routed(gate, up, weights, limit)
        if numerics.name == "qat" and self.experts.form == "mxfp4":
            h = quant.ste(h, simulate_input(h, c.activation_group))
        return F.linear(h.flatten(1), w2.transpose(0, 1).flatten(1).to(BF16)) + shared

    def _one_by_one(self, x: Tensor, chosen: Tensor, g: Tensor, numerics: Numerics) -> Tensor:
        """8.2, 8.3: the weight goes in before w2; outputs are bf16, their sum fp32."""
        total = torch.zeros_like(x, dtype=torch.float32)
        narrow = numerics.simulate and self.experts.form == "mxfp4"
        group = self.config.activation_group
        xq = simulate_input(x, group) if narrow else x
        for e in range(self.config.n_routed_experts):
            row, slot = torch.nonzero(chosen == e, as_tuple=True)
            if not len(row):
                continue
            gate = F.linear(xq[row].float(), self.experts.w1[e].float()).to(BF16)
            up = F.linear(xq[row].float(), self.experts.w3[e].float()).to(BF16)
            limit = self.config.swiglu_limit
            h = F.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)
            h = (g[row, slot][:, None] * h).to(BF16)
            h = quant.sim8(h, group) if narrow else h
            y = F.linear(h.float(), self.experts.w2[e].float()).to(BF16)
            total.index_add_(0, row, y.float())
        return total


class Hyper(nn.Module):
    """4: the parameters of one sub-layer's hyper-connection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        n, d = config.hc_mult, config.hidden_size
        self.config = config
        self.fn = nn.Parameter(torch.randn((2 + n) * n, n * d) * (n * d)**-0.5)
        mixing = torch.full((n, n), -3.0).fill_diagonal_(0.0).flatten()
        pre = torch.full((n,), -math.log(n - 1)) + 0.5 * torch.randn(n)
        self.base = nn.Parameter(torch.cat([pre, 0.3 * torch.randn(n), mixing]))
        self.scale = nn.Parameter(torch.full((3,), 0.1))

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """streams [T,n,D] -> u [T,D], post [T,n], comb [T,n,n]."""
        pre, post, comb = self.mix(streams)
        return hc_apply_pre(streams, pre), post, comb

    def mix(self, streams: Tensor, *, exact: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """streams [T,n,D] -> pre [T,n], post [T,n], comb [T,n,n]. Not exact: with a product in bf16, half the bytes."""
        c, n = self.config, self.config.hc_mult
        flat = streams.flatten(1)
        product = F.linear(flat.float(), self.fn) if exact else F.linear(flat, self.fn.to(BF16)).float()
        mixes = product * hc_inverse_rms(flat, c.rms_norm_eps)
        pre, post, logits = hc_split(mixes, self.scale, self.base, n, c.hc_eps)
        return pre, post, sinkhorn(logits.view(-1, n, n), c.hc_sinkhorn_iters, c.hc_eps)


class HyperHead(nn.Module):
    """4.3: streams to one vector."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        n, d = config.hc_mult, config.hidden_size
        self.config = config
        self.fn = nn.Parameter(torch.randn(n, n * d) * (n * d)**-0.5)
        self.base = nn.Parameter(torch.full((n,), -math.log(n - 1)))
        self.scale = nn.Parameter(torch.full((1,), 0.1))

    def forward(self, streams: Tensor) -> Tensor:
        flat = streams.flatten(1)
        mixes = F.linear(flat.float(), self.fn) * hc_inverse_rms(flat, self.config.rms_norm_eps)
        pre = torch.sigmoid(mixes * self.scale + self.base) + self.config.hc_eps
        return hc_apply_pre(streams, pre)


class Block(nn.Module):
    """3: attention then MoE, each between a hyper-connection's pre and post."""

    def __init__(self, config: Config, layer: int, form: str) -> None:
        super().__init__()
        self.config = config
        self.attn_norm = Weight(torch.ones(config.hidden_size))
        self.ffn_norm = Weight(torch.ones(config.hidden_size))
        self.hc_attn, self.hc_ffn = Hyper(config), Hyper(config)
        self.attn = Attention(config, config.compress_ratios[layer])
        self.ffn = MoE(config, layer, form)

    def forward(self, streams: Tensor, ids: Tensor, rope: Rope, numerics: Numerics) -> Tensor:
        """streams [B*S,n,D], ids [B,S]."""
        batch, length = ids.shape
        eps = self.config.rms_norm_eps
        u, post, comb = self.hc_attn(streams)
        u = rms_norm(u, self.attn_norm.weight, eps).view(batch, length, -1)
        streams = hc_apply_post(self.attn(u, rope, numerics).flatten(0, 1), streams, post, comb)
        u, post, comb = self.hc_ffn(streams)
        u = rms_norm(u, self.ffn_norm.weight, eps)
        return hc_apply_post(self.ffn(u, ids.flatten(), numerics), streams, post, comb)


class Mtp(nn.Module):
    """10: predicts the token after next from the trunk's raw streams and the next token's embedding."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d = config.hidden_size
        self.config = config
        self.block = Block(config, config.num_hidden_layers, "mxfp4")
        self.e_proj, self.h_proj = Linear(d, d, "fp8"), Linear(d, d, "fp8")
        self.enorm, self.hnorm, self.norm = (Weight(torch.ones(d)) for _ in range(3))
        self.hc_head = HyperHead(config)

    def forward(self, streams: Tensor, embedded: Tensor, next_ids: Tensor, rope: Rope, numerics: Numerics) -> Tensor:
        eps = self.config.rms_norm_eps
        e = self.e_proj(rms_norm(embedded, self.enorm.weight, eps), numerics)
        h = self.h_proj(rms_norm(streams, self.hnorm.weight, eps), numerics)
        x = self.block(e[:, None, :] + h, next_ids, rope, numerics)
        return rms_norm(self.hc_head(x), self.norm.weight, eps)


class Model(nn.Module):
    """Trunk, head and one MTP block. Lengths must be multiples of the window (pad on the right: causality hides pads)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = Weight(torch.randn(config.vocab_size, config.hidden_size) * 0.5)
        self.head = Weight(torch.randn(config.vocab_size, config.hidden_size) * 0.01)
        self.norm = Weight(torch.ones(config.hidden_size))
        self.layers = nn.ModuleList(Block(config, i, "nvfp4") for i in range(config.num_hidden_layers))
        self.hc_head = HyperHead(config)
        self.mtp = Mtp(config)
        self._rope: Rope | None = None
        self._rope_length = 0

    def rope(self, length: int) -> Rope:
        if self._rope is None or self._rope_length < length:
            self._rope, self._rope_length = Rope(self.config, length, self.embed.weight.device), length
        return self._rope

    def trunk(self, ids: Tensor, numerics: Numerics, trace: list[Tensor] | None = None) -> Tensor:
        """ids [B,S] -> streams [B*S,n,D]."""
        rope = self.rope(ids.shape[1])
        x = F.embedding(ids.flatten(), self.embed.weight.to(BF16))
        streams = x[:, None, :].expand(-1, self.config.hc_mult, -1).contiguous()
        for layer in self.layers:
            streams = layer(streams, ids, rope, numerics)
            if trace is not None:
                trace.append(streams)
        return streams

    def distillation_loss(self) -> Tensor:
        """Of the last pass in training, over the layers with an indexer."""
        losses = [layer.attn.distillation for layer in self.layers if layer.attn.ratio == 4]
        return sum(losses) / len(losses)

    def hidden(self, streams: Tensor) -> Tensor:
        return rms_norm(self.hc_head(streams), self.norm.weight, self.config.rms_norm_eps)

    def project(self, hidden: Tensor, numerics: Numerics) -> Tensor:
        """Logits, fp32 in the exact numerics, bf16 in training."""
        if numerics.exact:
            return linear32(hidden, self.head.weight)
        return F.linear(hidden, self.head.weight.to(BF16))

    def draft_hidden(self, streams: Tensor, next_ids: Tensor, numerics: Numerics) -> Tensor:
        embedded = F.embedding(next_ids.flatten(), self.embed.weight.to(BF16))
        return self.mtp(streams, embedded, next_ids, self.rope(next_ids.shape[1]), numerics)

    @torch.no_grad()
    def logits(self, ids: Tensor, numerics: Numerics, last: Tensor | None = None) -> Tensor:
        """[B,S,V], or [B,V] at the positions `last` [B]. Any length: pads to a multiple of the window itself."""
        batch, length = ids.shape
        padded = F.pad(ids, (0, -length % self.config.sliding_window))
        hidden = self.hidden(self.trunk(padded, numerics)).view(batch, padded.shape[1], -1)
        if last is not None:
            return self.project(hidden[torch.arange(batch, device=ids.device), last], numerics)
        return self.project(hidden[:, :length], numerics)

    @torch.no_grad()
    def store(self) -> None:
        """Replaces every weight by what its stored format decodes to, as the `release` numerics want."""
        for module in self.modules():
            if isinstance(module, (Linear, Table)):
                module.weight.copy_(module.stored())
            elif isinstance(module, Experts):
                for w, value in zip((module.w1, module.w3, module.w2), module.stored()):
                    w.copy_(value)
            elif isinstance(module, (Weight, Gate)):
                module.weight.copy_(module.weight.to(BF16).float())

    @torch.no_grad()
    def round_to_bf16(self) -> None:
        """Replaces weight matrices by their bf16 rounding, as the `plain` numerics want."""
        for module in self.modules():
            if isinstance(module, (Linear, Table, Weight, Gate)):
                module.weight.copy_(module.weight.to(BF16).float())
            elif isinstance(module, Experts):
                for w in (module.w1, module.w3, module.w2):
                    w.copy_(w.to(BF16).float())
