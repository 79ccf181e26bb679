"""Reads a checkpoint directory: config.json and safetensors, one file or shards. Tensors are views of the mapped files."""

from __future__ import annotations

import json
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

ITEM_BYTES = {"F32": 4, "BF16": 2, "I64": 8, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str  # As safetensors names it, a key of ITEM_BYTES.
    shape: tuple[int, ...]
    view: memoryview

    def data(self) -> bytes:
        """A copy of the stored bytes."""
        return bytes(self.view)


class Checkpoint:
    """A checkpoint with the release's tensor names, as `dsv4 synth` writes it. Errors name the file or the tensor."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = json.loads((directory / "config.json").read_text())
        self.tensors: dict[str, Tensor] = {}
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise ValueError(f"{directory}: no .safetensors file")
        for path in files:
            self._read(path)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ValueError(f"{self.directory}: no tensor {name}")
        return self.tensors[name]

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        (length,) = struct.unpack_from("<Q", view)
        if length > len(view) - 8:
            raise ValueError(f"{path}: header of {length} bytes, file of {len(view)}")
        start = 8 + length
        for name, entry in json.loads(bytes(view[8:start])).items():
            if name == "__metadata__":
                continue
            dtype, shape = entry["dtype"], tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            if dtype not in ITEM_BYTES:
                raise ValueError(f"{path}: tensor {name}: dtype {dtype}, known are {', '.join(ITEM_BYTES)}")
            if not 0 <= begin <= end <= len(view) - start or end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
                raise ValueError(f"{path}: tensor {name}: {begin} to {end} do not hold {dtype} {list(shape)}")
            self.tensors[name] = Tensor(name, dtype, shape, view[start + begin:start + end])
