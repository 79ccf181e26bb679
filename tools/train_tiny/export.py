"""Writes the trained weights as a checkpoint in the form of a release: its tensor names, dtypes and config.

V4 as the NVFP4 release: routed experts of the trunk become NVFP4 (`weight`, `weight_scale`, `weight_scale_2`, `input_scale`), those
of the MTP block MXFP4 (`weight`, `scale`), dense linears FP8 in 128x128 blocks, the rest BF16, F32, I64. V4.1: MXFP4 experts, dense
linears in 32x32 blocks, n-gram rows in FP8 with a scale for 32 elements.

  python3 export.py --weights WEIGHTS --model models/tiny
"""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import quant
from checkpoint import load_weights
from config import Config
from drafter import Drafter
from linears import Linear
from model import Block, Experts, Model
from model41 import Block41, Model41

_BYTES = {torch.bfloat16: ("BF16", torch.int16), torch.float32: ("F32", torch.int32), torch.int64: ("I64", torch.int64),
          torch.float8_e4m3fn: ("F8_E4M3", torch.uint8), torch.uint8: ("U8", torch.uint8)}


class Stored:
    """A tensor with its safetensors dtype name."""

    def __init__(self, value: Tensor, dtype: str | None = None) -> None:
        name, view = _BYTES[value.dtype]
        self.dtype = dtype or name
        self.shape = list(value.shape)
        self.data = value.contiguous().cpu().view(view).numpy().tobytes()

    @staticmethod
    def of(dtype: str, shape: list[int], data: bytes) -> Stored:
        made = Stored.__new__(Stored)
        made.dtype, made.shape, made.data = dtype, shape, data
        return made


def _e8m0(scale: Tensor) -> Stored:
    exponent = torch.log2(scale).round().to(torch.int32) + 127
    return Stored(exponent.to(torch.uint8), "F8_E8M0")


def _nibbles(values: Tensor) -> Tensor:
    """E2M1 values [..., K] to packed bytes [..., K/2], even element in the low nibble."""
    grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    code = torch.searchsorted(grid, values.abs().contiguous()).to(torch.uint8)
    code = code | ((values < 0).to(torch.uint8) << 3)
    return code[..., 0::2] | (code[..., 1::2] << 4)


def _linear(out: dict[str, Stored], name: str, module: Linear) -> None:
    if module.form == "bf16":
        out[f"{name}.weight"] = Stored(module.weight.to(torch.bfloat16))
        return
    side = 128 if module.form == "fp8" else 32
    _fp8(out, name, module.weight, side, side)


def _fp8(out: dict[str, Stored], name: str, weight: Tensor, rows: int, columns: int) -> None:
    values, scale = quant.fp8_blocks(weight, rows, columns)
    out[f"{name}.weight"] = Stored(values.to(torch.float8_e4m3fn))
    out[f"{name}.scale"] = _e8m0(scale)


def _experts(out: dict[str, Stored], name: str, experts: Experts) -> None:
    stacked = {"w1": experts.w1, "w2": experts.w2, "w3": experts.w3}
    g13, g2 = quant.nvfp4_global_scale(experts.w1, experts.w3), quant.nvfp4_global_scale(experts.w2)
    for projection, w in stacked.items():
        if experts.form == "mxfp4":
            values, scale = quant.mxfp4_blocks(w)
            packed = _nibbles(values)
            for e in range(w.shape[0]):
                out[f"{name}.{e}.{projection}.weight"] = Stored(packed[e], "I8")
                out[f"{name}.{e}.{projection}.scale"] = _e8m0(scale[e])
            continue
        g = g2 if projection == "w2" else g13
        values, scale = quant.nvfp4_blocks(w, g)
        packed = _nibbles(values)
        for e in range(w.shape[0]):
            key = f"{name}.{e}.{projection}"
            out[f"{key}.weight"] = Stored(packed[e])
            out[f"{key}.weight_scale"] = Stored(scale[e].to(torch.float8_e4m3fn))
            out[f"{key}.weight_scale_2"] = Stored(g[e].reshape(()))
            # a calibrated activation scale in the release; engines must not use it, 1.0 is ModelOpt's constant recipe
            out[f"{key}.input_scale"] = Stored(torch.ones(()))


def _hyper(out: dict[str, Stored], name: str, module: torch.nn.Module) -> None:
    for part in ("fn", "base", "scale"):
        out[f"{name}_{part}"] = Stored(getattr(module, part).detach())


def _norm(out: dict[str, Stored], name: str, module: torch.nn.Module) -> None:
    out[f"{name}.weight"] = Stored(module.weight.to(torch.bfloat16))


def _engram(out: dict[str, Stored], name: str, module: torch.nn.Module) -> None:
    _fp8(out, f"{name}.embed", module.embed.weight, 1, 32)
    _linear(out, f"{name}.wkv", module.wkv)
    for part in ("q_weight", "k_weight"):
        out[f"{name}.{part}"] = Stored(getattr(module, part).to(torch.bfloat16))


def _children(out: dict[str, Stored], name: str, module: torch.nn.Module) -> None:
    """Linears and norms of a module, as many as it has."""
    for part, child in module.named_children():
        (_linear if isinstance(child, Linear) else _norm)(out, f"{name}.{part}", child)


def _compressor(out: dict[str, Stored], name: str, module: torch.nn.Module) -> None:
    _linear(out, f"{name}.wkv", module.wkv)
    _linear(out, f"{name}.wgate", module.wgate)
    _norm(out, f"{name}.norm", module.norm)
    out[f"{name}.ape"] = Stored(module.ape.detach())


def _block(out: dict[str, Stored], name: str, block: Block | Block41) -> None:
    _norm(out, f"{name}.attn_norm", block.attn_norm)
    _norm(out, f"{name}.ffn_norm", block.ffn_norm)
    _hyper(out, f"{name}.hc_attn", block.hc_attn)
    _hyper(out, f"{name}.hc_ffn", block.hc_ffn)
    attention = block.attn
    for part in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b"):
        _linear(out, f"{name}.attn.{part}", getattr(attention, part))
    _norm(out, f"{name}.attn.q_norm", attention.q_norm)
    _norm(out, f"{name}.attn.kv_norm", attention.kv_norm)
    out[f"{name}.attn.attn_sink"] = Stored(attention.attn_sink.detach())
    if isinstance(block, Block41):
        for part in ("compressor", "indexer"):
            if hasattr(attention, part):
                _children(out, f"{name}.attn.{part}", getattr(attention, part))
        if hasattr(block, "engram"):
            _engram(out, f"{name}.engram", block.engram)
        # biases of image positions; this model reads none
        out[f"{name}.ffn.gate.bias_vl"] = Stored(torch.zeros_like(block.ffn.gate.bias))
    elif attention.ratio:
        _compressor(out, f"{name}.attn.compressor", attention.compressor)
    if attention.ratio == 4 and not isinstance(block, Block41):
        _linear(out, f"{name}.attn.indexer.wq_b", attention.indexer.wq_b)
        _linear(out, f"{name}.attn.indexer.weights_proj", attention.indexer.weights_proj)
        _compressor(out, f"{name}.attn.indexer.compressor", attention.indexer.compressor)
    gate = block.ffn.gate
    out[f"{name}.ffn.gate.weight"] = Stored(gate.weight.to(torch.bfloat16))
    if hasattr(gate, "tid2eid"):
        out[f"{name}.ffn.gate.tid2eid"] = Stored(gate.tid2eid)
    else:
        out[f"{name}.ffn.gate.bias"] = Stored(gate.bias)
    for part in ("w1", "w2", "w3"):
        _linear(out, f"{name}.ffn.shared_experts.{part}", getattr(block.ffn.shared_experts, part))
    _experts(out, f"{name}.ffn.experts", block.ffn.experts)


@torch.no_grad()
def stored_tensors(model: Model) -> dict[str, Stored]:
    """Every tensor of the checkpoint under the release's name."""
    out: dict[str, Stored] = {}
    for part in ("embed", "head", "norm"):
        _norm(out, part, getattr(model, part))
    for index, block in enumerate(model.layers):
        _block(out, f"layers.{index}", block)
    if isinstance(model, Model41):
        return out
    _hyper(out, "hc_head", model.hc_head)
    mtp = model.mtp
    _block(out, "mtp.0", mtp.block)
    for part in ("e_proj", "h_proj"):
        _linear(out, f"mtp.0.{part}", getattr(mtp, part))
    for part in ("enorm", "hnorm", "norm"):
        _norm(out, f"mtp.0.{part}", getattr(mtp, part))
    _hyper(out, "mtp.0.hc_head", mtp.hc_head)
    return out


def merge(model: Path, drafter: Path) -> None:
    """Puts a drafter into the model's own files, where V4.1 has it."""
    parts = [raw_safetensors(folder / "model.safetensors") for folder in (model, drafter)]
    write_safetensors(model / "model.safetensors", {k: v for k, v in parts[0].items() if not k.startswith("mtp.")} | parts[1])
    (model / "config.json").write_text((drafter / "config.json").read_text(encoding="utf-8"), encoding="utf-8")


def raw_safetensors(path: Path) -> dict[str, Stored]:
    """The tensors of a file as they are stored."""
    raw, tensors = path.read_bytes(), {}
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    for name, entry in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            tensors[name] = Stored.of(entry["dtype"], entry["shape"], raw[start + first:start + last])
    return tensors


def write_safetensors(path: Path, tensors: dict[str, Stored]) -> None:
    """One safetensors file. Wide dtypes come first, as the safetensors library orders them, so that all data is aligned."""
    widths = {"I64": 8, "F32": 4, "BF16": 2}
    order = sorted(tensors, key=lambda name: (-widths.get(tensors[name].dtype, 1), name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in order:
        tensor = tensors[name]
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, offset + len(tensor.data)]}
        offset += len(tensor.data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name in order:
            file.write(tensors[name].data)


@torch.no_grad()
def write_drafter(drafter: Drafter, trunk: dict[str, object], folder: Path) -> int:
    """model.safetensors with the tensors `mtp.*` alone, and config.json: the trunk's with the `dspark_*` keys. The file's size."""
    out: dict[str, Stored] = {}
    last = f"mtp.{len(drafter.stages) - 1}"
    _linear(out, "mtp.0.main_proj", drafter.main_proj)
    _norm(out, "mtp.0.main_norm", drafter.main_norm)
    for index, stage in enumerate(drafter.stages):
        _block(out, f"mtp.{index}", stage)
    _norm(out, f"{last}.norm", drafter.norm)
    first, second = ("embed", "head") if drafter.config.is_v41 else ("markov_w1", "markov_w2")
    _norm(out, f"{last}.markov_head.{first}", drafter.markov_w1)
    _norm(out, f"{last}.markov_head.{second}", drafter.markov_w2)
    if drafter.config.is_v41:
        _norm(out, f"{last}.confidence_head.proj", drafter.confidence)
    else:
        _hyper(out, f"{last}.hc_head", drafter.hc_head)
        out[f"{last}.confidence_head.proj.weight"] = Stored(drafter.confidence.weight.detach())
    write_safetensors(folder / "model.safetensors", out)
    own = trunk.get("text_config", trunk)
    layers = int(own["num_hidden_layers"])
    ratios = [*own["compress_ratios"][:layers], *[0] * len(drafter.stages)]
    text = {**own, **drafter.draft_config.keys(), "compress_ratios": ratios}
    if drafter.config.is_v41:
        text["num_nextn_predict_layers"] = len(drafter.stages)
    text = {**trunk, "text_config": text} if own is not trunk else text
    (folder / "config.json").write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")
    return (folder / "model.safetensors").stat().st_size


def quantization_config(layers: int) -> dict[str, object]:
    """The release's FP8 description with what ModelOpt's writer adds for NVFP4 experts."""
    ignore = ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"]
    half = {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"}
    return {
        "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128], "moe_quant_algo": "NVFP4", "quant_algo": "MIXED_PRECISION", "group_size": 16,
        "quantized_layers": {f"layers.{i}.ffn.experts": {"group_size": 16, "quant_algo": "NVFP4"} for i in range(layers)},
        "config_groups": {"group_0": {"input_activations": half, "targets": ["Linear"], "weights": half}},
        "ignore": ignore}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--weights", type=Path, help="folder that train.py --output wrote")
    source.add_argument("--drafter", type=Path, help="folder that train_drafter.py wrote: put it into the model's files (V4.1)")
    parser.add_argument("--model", type=Path, required=True, help="model folder with config.json; files are written there")
    arguments = parser.parse_args()
    config_file = arguments.model / "config.json"
    if arguments.drafter:
        merge(arguments.model, arguments.drafter)
        print(f"{(arguments.model / 'model.safetensors').stat().st_size} bytes with the drafter")
        return
    config = Config.load(config_file)
    tensors = stored_tensors(load_weights(config, arguments.weights))
    write_safetensors(arguments.model / "model.safetensors", tensors)
    text = json.loads(config_file.read_text(encoding="utf-8"))
    generation_file = arguments.model / "generation_config.json"  # Its card and its limit stay.
    kept = json.loads(generation_file.read_text(encoding="utf-8")) if generation_file.exists() else {}
    generation = {**kept, "_from_model_config": True, "bos_token_id": text["bos_token_id"], "eos_token_id": text["eos_token_id"],
                  "do_sample": True, "temperature": 1.0, "top_p": 1.0}
    generation_file.write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    if not config.is_v41:
        text["quantization_config"] = quantization_config(config.num_hidden_layers)
        config_file.write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")
        _write_modelopt(arguments.model / "hf_quant_config.json", text["quantization_config"])
    size = (arguments.model / "model.safetensors").stat().st_size
    print(f"{len(tensors)} tensors, {size} bytes")


def _write_modelopt(path: Path, description: dict[str, Any]) -> None:
    modelopt = {"producer": {"name": "modelopt", "version": "dsv4-nvfp4-experts"},
                "quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "group_size": 16,
                                 "quantized_layers": description["quantized_layers"],
                                 "exclude_modules": description["ignore"]}}
    path.write_text(json.dumps(modelopt, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
