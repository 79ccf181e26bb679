"""Master weights on disk: everything that ships as BF16 or narrower in bf16, the release's F32 tensors in fp32.

A set is split into a few files, because single files that travel between machines are limited in size.
"""

from __future__ import annotations

from pathlib import Path

import torch

from config import Config
from model import Model
from model41 import build

_FP32 = (".fn", ".base", ".scale", ".ape", ".attn_sink", ".bias")
_PARTS = 3


def save_weights(model: Model, folder: Path) -> None:
    """Writes `weights-0.pt` and so on into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {k: v if v.dtype == torch.int64 or k.endswith(_FP32) else v.bfloat16()
             for k, v in model.state_dict().items() if not k.endswith("tid2eid")}
    parts: list[dict[str, torch.Tensor]] = [{} for _ in range(_PARTS)]
    sizes = [0] * _PARTS
    for key, value in sorted(state.items(), key=lambda kv: -kv[1].numel()):
        smallest = sizes.index(min(sizes))
        parts[smallest][key] = value.cpu().clone()
        sizes[smallest] += value.numel() * value.element_size()
    for index, part in enumerate(parts):
        torch.save(part, folder / f"weights-{index}.pt")


def load_weights(config: Config, folder: Path, device: str = "cpu") -> Model:
    """A model with the weights that `save_weights` wrote; the hash tables come from their seeds."""
    model = build(config)
    state = {}
    for index in range(_PARTS):
        state.update(torch.load(folder / f"weights-{index}.pt", map_location="cpu", weights_only=True))
    missing, unexpected = model.load_state_dict({k: v.float() for k, v in state.items()}, strict=False)
    missing = [k for k in missing if not k.endswith("tid2eid")]
    if missing or unexpected:
        raise ValueError(f"{folder}: missing {missing}, unexpected {unexpected}")
    return model.to(device)
