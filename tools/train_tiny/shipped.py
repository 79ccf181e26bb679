"""Reads a checkpoint that export.py wrote back into the PyTorch model, every weight as its stored bytes decode."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from config import Config
from drafter import DraftConfig, Drafter
from model import Model
from model41 import build

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "F8_E4M3": torch.float8_e4m3fn,
           "F8_E8M0": torch.uint8, "I8": torch.uint8, "U8": torch.uint8}
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of one file; FP4 and E8M0 as raw bytes."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        data = torch.frombuffer(bytearray(raw[8 + size + first:8 + size + last]), dtype=_DTYPES[entry["dtype"]])
        tensors[name] = data.reshape(entry["shape"])
    return tensors


def _unpack(packed: Tensor) -> Tensor:
    return _E2M1[torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()]


def _power(e8m0: Tensor) -> Tensor:
    return torch.exp2(e8m0.float() - 127.0)


def decode(tensors: dict[str, Tensor], name: str) -> Tensor:
    """The fp32 value of `name` (int64 tables as they are), from its own bytes and its siblings."""
    value = tensors[name]
    base = name.removesuffix(".weight")
    if value.dtype == torch.float8_e4m3fn:
        scale = _power(tensors[f"{base}.scale"])
        rows, columns = (-(-value.shape[axis] // scale.shape[axis]) for axis in (0, 1))
        return value.float() * scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    if value.dtype == torch.uint8 and f"{base}.weight_scale" in tensors:
        scale = tensors[f"{base}.weight_scale"].float() * tensors[f"{base}.weight_scale_2"]
        return _unpack(value) * scale.repeat_interleave(16, 1)
    if value.dtype == torch.uint8:
        return _unpack(value) * _power(tensors[f"{base}.scale"]).repeat_interleave(32, 1)
    return value if value.dtype == torch.int64 else value.float()


def _state(tensors: dict[str, Tensor], rename: Callable[[str], str]) -> dict[str, Tensor]:
    """A state dict from decoded tensors: hyper-connections as submodules, experts stacked, then `rename`."""
    state: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name in tensors:
        hyper = re.search(r"hc_(attn|ffn|head)_(fn|base|scale)$", name)
        # the hyper-connections' own `scale` tensors end like a quantisation scale
        if not hyper and name.endswith((".bias_vl", ".scale", ".weight_scale", ".weight_scale_2", ".input_scale")):
            continue
        value = decode(tensors, name)
        key = rename(re.sub(r"_(fn|base|scale)$", r".\1", name) if hyper else name)
        match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(w\d)\.weight", key)
        if match:
            experts.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = value
        else:
            state[key] = value
    for key, parts in experts.items():
        state[key] = torch.stack([parts[e] for e in range(len(parts))])
    return state


def load_shipped(folder: Path, device: str = "cpu") -> Model:
    """The model of a folder, ready for the `release` numerics."""
    model = build(Config.load(folder / "config.json"))

    def rename(key: str) -> str:
        return re.sub(r"^mtp\.0\.(?!e_proj|h_proj|enorm|hnorm|norm|hc_head)", "mtp.block.", key).replace("mtp.0.", "mtp.")

    tensors = read_safetensors(folder / "model.safetensors")
    if not hasattr(model, "mtp"):  # what is there of mtp.* is a drafter
        tensors = {name: value for name, value in tensors.items() if not name.startswith("mtp.")}
    model.load_state_dict(_state(tensors, rename))
    return model.to(device).eval()


def load_drafter(folder: Path, config: Config, device: str = "cpu") -> Drafter:
    """The drafter of a folder that export.write_drafter wrote, or in the model's own files, ready for the `release` numerics."""
    tensors = {name: value for name, value in read_safetensors(folder / "model.safetensors").items() if name.startswith("mtp.")}
    draft = DraftConfig.load(folder / "config.json")
    draft.stages = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("mtp."))
    drafter = Drafter(config, draft)
    whole = {"main_proj", "main_norm", "norm", "hc_head", "markov_head", "confidence_head"}

    def rename(key: str) -> str:
        _, stage, rest = key.split(".", 2)
        if rest.split(".")[0] not in whole:
            return f"stages.{stage}.{rest}"
        rest = rest.replace("markov_head.embed", "markov_w1").replace("markov_head.head", "markov_w2")
        return rest.replace("markov_head.", "").replace("confidence_head.proj", "confidence")

    drafter.load_state_dict(_state(tensors, rename))
    return drafter.to(device).eval()
