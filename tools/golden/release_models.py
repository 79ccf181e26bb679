"""Which golden models exist in the release's own formats, and how each is written to disk."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import encode
from dialects import DIALECTS
from random_model import Shape, release_config, transformers_config, weights


@dataclass
class Golden:
    """`experts` and `dense` name a weight format, `rest` that of the projections the release keeps in bf16."""

    name: str
    shape: Shape
    seed: int
    experts: str
    dense: str
    rest: str = "bf16"
    dialect: str = "release"
    config: str = "release"
    num_tokens: int = 264
    shards: int = 1
    fused_experts: bool = False
    scalar_shape: tuple = ()
    quantization: dict | None = None
    extra_config: dict = field(default_factory=dict)
    note: str = ""


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}


def _modelopt_experts(num_layers: int) -> dict:
    layers = {f"layers.{i}.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in range(num_layers)}
    return FP8 | {
        "moe_quant_algo": "NVFP4", "quant_algo": "MIXED_PRECISION", "group_size": 16, "quantized_layers": layers,
        "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False},
            "input_activations": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}}},
        "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"]}


GOLDENS = [
    Golden("fp8_mxfp4", Shape([0, 4, 128], heads=4, mtp=True), 11, "mxfp4", "fp8", quantization=FP8,
           extra_config={"expert_dtype": "fp4"},
           note="the release as published: FP8 blocks, MXFP4 experts, official names, one file, a draft block to skip"),
    Golden("nvfp4_experts", Shape([4, 128], num_hash_layers=0, window=32, index_topk=9), 12, "nvfp4", "fp8", shards=3,
           quantization=_modelopt_experts(2), extra_config={"expert_dtype": "fp4"},
           note="NVIDIA's form: NVFP4 experts with ModelOpt suffixes, the rest FP8; sharded with an index; window below the ratio 128"),
    Golden("nvfp4_all", Shape([4, 128]), 13, "nvfp4", "nvfp4", rest="nvfp4", dialect="transformers", config="transformers",
           scalar_shape=(1,), quantization={"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
                                            "ignore": ["lm_head", "model.embed_tokens"]},
           note="every linear NVFP4, router included; transformers' names and config; scalars of shape [1]"),
    Golden("nvfp4_ct", Shape([4], num_hash_layers=0, window=64), 14, "nvfp4", "nvfp4", rest="nvfp4", dialect="save_pretrained",
           config="transformers",
           quantization={"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {
               "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}}},
               "ignore": ["head", "model.embed_tokens"]},
           note="compressed-tensors suffixes (global scale is a divisor) on the names save_pretrained writes"),
    Golden("fp8_base", Shape([4], num_hash_layers=0, window=48), 15, "fp8", "fp8",
           quantization={"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [64, 64]},
           extra_config={"expert_dtype": "fp8"}, note="FP8 experts too, float32 scales, 64 x 64 blocks"),
    Golden("bf16", Shape([0, 4], hidden=64, q_lora=48, heads=2, head_dim=96, rope_dim=32, o_lora=40, index_dim=32, inter=72,
                         hc_mult=2, window=40, experts=5, experts_per_token=3, route_scale=2.5), 16, "bf16", "bf16",
           dialect="transformers", config="transformers", fused_experts=True,
           note="no quantised weight, no dimension a multiple of 128, two streams, transformers' fused experts"),
    Golden("dspark", Shape([0, 4, 0], window=32, dspark_stages=3), 18, "nvfp4", "fp8", num_tokens=96, quantization=_modelopt_experts(3),
           extra_config={"expert_dtype": "fp4"},
           note="a DSpark drafter of three stages: MXFP4 draft experts beside an NVFP4 trunk; one nextn layer in the config, as in 0731"),
    Golden("ordinary", Shape([4], num_hash_layers=0, calm=False, swiglu_limit=10.0), 17, "mxfp4", "fp8", num_tokens=0,
           quantization=FP8, extra_config={"expert_dtype": "fp4"},
           note="not calm: prompts of 1-8 tokens only, where a faithful implementation often agrees to 0.99999 and others never do"),
]

_BF16_REST = re.compile(r"compressor\.(wkv|wgate)$|weights_proj$|ffn\.gate$")
_DENSE = re.compile(r"\.(wq_a|wq_b|wkv|wo_a|wo_b|e_proj|h_proj|main_proj)$|shared_experts\.w\d$")
_NORM = re.compile(r"(^|_|\.)(e|h|attn_|ffn_|q_|kv_|main_)?norm$")


def _encode(golden: Golden, name: str, x: np.ndarray) -> dict[str, encode.Tensor]:
    if name.endswith("tid2eid"):
        return {"": ("I64", x)}
    if name in ("embed", "head") or _NORM.search(name) or ".markov_head." in name:
        return encode.bf16(x)
    if name.endswith(".confidence_head.proj"):
        return encode.plain_f32(x)
    if ".ffn.experts." in name:
        kind = "mxfp4" if name.startswith("mtp") and golden.experts == "nvfp4" else golden.experts
    elif _BF16_REST.search(name):
        kind = golden.rest
    elif _DENSE.search(name):
        kind = golden.dense
    else:
        return encode.f32(x)
    if kind == "nvfp4":
        suffixes = "compressed-tensors" if golden.name == "nvfp4_ct" else "modelopt"
        return encode.nvfp4(x, suffixes, scalar_shape=golden.scalar_shape)
    if kind == "fp8":
        block = golden.quantization["weight_block_size"]
        return encode.fp8_block(x, tuple(block), golden.quantization.get("scale_fmt", "float32"))
    return {"mxfp4": encode.mxfp4, "bf16": encode.bf16}[kind](x)


def tensors(golden: Golden, seed: int) -> dict[str, encode.Tensor]:
    """Every tensor of the checkpoint under its final name."""
    source, rename = weights(golden.shape, seed), DIALECTS[golden.dialect]
    if golden.fused_experts:
        source = _fuse(golden.shape, source)
    out = {}
    for name, x in source.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            out[name] = encode.bf16(x)["weight"]
            continue
        for suffix, tensor in _encode(golden, name, x).items():
            out[rename(name) + (f".{suffix}" if suffix else "")] = tensor
    return out


def _fuse(shape: Shape, source: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    out = {k: v for k, v in source.items() if ".ffn.experts." not in k}
    for layer in range(len(shape.ratios)):
        def experts(name, layer=layer):
            return [source[f"layers.{layer}.ffn.experts.{e}.{name}"] for e in range(shape.experts)]
        scope = f"model.layers.{layer}.mlp.experts"
        out[f"{scope}.gate_up_proj"] = np.stack([np.concatenate(pair) for pair in zip(experts("w1"), experts("w3"), strict=False)])
        out[f"{scope}.down_proj"] = np.stack(experts("w2"))
    return out


def write(golden: Golden, seed: int, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    config = (release_config if golden.config == "release" else transformers_config)(golden.shape) | golden.extra_config
    if golden.quantization:
        config["quantization_config"] = golden.quantization
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    all_tensors = tensors(golden, seed)
    if golden.shards == 1:
        encode.write_safetensors(directory / "model.safetensors", all_tensors, {"format": "pt"})
        return
    names = sorted(all_tensors)
    size = -(-len(names) // golden.shards)
    weight_map, total = {}, 0
    for shard in range(golden.shards):
        file = f"model-{shard + 1:05d}-of-{golden.shards:05d}.safetensors"
        part = {name: all_tensors[name] for name in names[shard * size:(shard + 1) * size]}
        encode.write_safetensors(directory / file, part, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
        total += sum(array.nbytes for _, array in part.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
