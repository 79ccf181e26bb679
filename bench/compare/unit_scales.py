"""NVFP4 experts whose second-level scales are 1, the only ones that llama.cpp's graph for V4 computes rightly."""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path

import blocks

_CODES = range(blocks.E4M3_NAN)  # The finite e4m3 numbers that are not negative, ascending.


def nearest_e4m3(value: float) -> int:
    """The code of the finite e4m3 number nearest to a value that is not negative; the even code of two."""
    return min(_CODES, key=lambda code: (abs(blocks.e4m3(code) - value), code & 1))


def fold(directory: Path) -> None:
    """Rewrites the checkpoint in place: each NVFP4 block scale becomes the nearest e4m3 number to its product with the tensor's
    weight_scale_2, which becomes 1. That changes the model, for both engines alike; it is meant for random ones."""
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
            (length,) = struct.unpack_from("<Q", data)
            header = json.loads(data[8:8 + length])
            for name in header:
                if name.endswith(".weight_scale_2"):
                    _fold_tensor(data, 8 + length, header[name], header[name.removesuffix("_2")])


def _fold_tensor(data: mmap.mmap, start: int, second: dict, first: dict) -> None:
    at = start + second["data_offsets"][0]
    (factor,) = struct.unpack_from("<f", data, at)
    table = bytes(nearest_e4m3(blocks.e4m3(code) * factor) if code in _CODES else code for code in range(256))
    begin, end = (start + offset for offset in first["data_offsets"])
    data[begin:end] = data[begin:end].translate(table)
    struct.pack_into("<f", data, at, 1.0)
