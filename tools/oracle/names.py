"""Tensor names: every dialect to the release's own names.

A name has a scope (a layer, a draft block or none), and a module or parameter inside it. Linears have a suffix (`weight`, `scale`,
`weight_scale_2`, ...). Only the middle part differs between dialects, so one table of pairs covers them.
"""

import re

# transformers' name inside a layer -> the release's.
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "attn_hc.fn": "hc_attn_fn", "attn_hc.base": "hc_attn_base", "attn_hc.scale": "hc_attn_scale",
    "ffn_hc.fn": "hc_ffn_fn", "ffn_hc.base": "hc_ffn_base", "ffn_hc.scale": "hc_ffn_scale",
    "self_attn.sinks": "attn.attn_sink",
    "self_attn.q_a_proj": "attn.wq_a",
    "self_attn.q_a_norm": "attn.q_norm",
    "self_attn.q_b_proj": "attn.wq_b",
    "self_attn.kv_proj": "attn.wkv",
    "self_attn.kv_norm": "attn.kv_norm",
    "self_attn.o_a_proj": "attn.wo_a",
    "self_attn.o_b_proj": "attn.wo_b",
    "self_attn.compressor.kv_norm": "attn.compressor.norm",
    "self_attn.compressor.position_bias": "attn.compressor.ape",
    "self_attn.compressor.kv_proj": "attn.compressor.wkv",
    "self_attn.compressor.gate_proj": "attn.compressor.wgate",
    "self_attn.compressor.indexer.q_b_proj": "attn.indexer.wq_b",
    "self_attn.compressor.indexer.weights_proj": "attn.indexer.weights_proj",
    "self_attn.compressor.indexer.scorer.weights_proj": "attn.indexer.weights_proj",
    "self_attn.compressor.indexer.kv_proj": "attn.indexer.compressor.wkv",
    "self_attn.compressor.indexer.gate_proj": "attn.indexer.compressor.wgate",
    "self_attn.compressor.indexer.kv_norm": "attn.indexer.compressor.norm",
    "self_attn.compressor.indexer.position_bias": "attn.indexer.compressor.ape",
    "mlp.gate": "ffn.gate",
    "mlp.gate.e_score_correction_bias": "ffn.gate.bias",
    "mlp.gate.tid2eid": "ffn.gate.tid2eid",
    "mlp.shared_experts.gate_proj": "ffn.shared_experts.w1",
    "mlp.shared_experts.up_proj": "ffn.shared_experts.w3",
    "mlp.shared_experts.down_proj": "ffn.shared_experts.w2",
    # Name that save_pretrained gives the key norm.
    "attn.norm": "attn.kv_norm",
}
EXPERT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
GLOBAL = {
    "embed_tokens": "embed", "lm_head": "head", "hc_head.hc_fn": "hc_head_fn", "hc_head.hc_base": "hc_head_base",
    "hc_head.hc_scale": "hc_head_scale",
}
# The scale suffixes of all writers; `weight` and `weight_packed` hold the elements.
SUFFIXES = ("weight", "weight_packed", "scale", "weight_scale_inv", "weight_scale", "weight_scale_2", "weight_global_scale",
            "input_scale", "input_global_scale")


def canonical(name: str) -> tuple[str, str]:
    """(module or parameter in the release's names, suffix or '')."""
    stem, _, suffix = name.rpartition(".")
    if suffix not in SUFFIXES or re.search(r"(attn|ffn)_hc\.scale$", name):
        stem, suffix = name, ""
    stem = stem.removeprefix("model.")
    match = re.fullmatch(r"(layers\.\d+|mtp\.\d+)\.(.+)", stem)
    if not match:
        return GLOBAL.get(stem, stem), suffix
    scope, rest = match.groups()
    expert = re.fullmatch(r"mlp\.experts\.(\d+)\.(\w+)", rest)
    if expert:
        return f"{scope}.ffn.experts.{expert[1]}.{EXPERT[expert[2]]}", suffix
    return f"{scope}.{LAYER.get(rest, rest)}", suffix
