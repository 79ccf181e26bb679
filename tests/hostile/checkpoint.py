"""A safetensors checkpoint in memory, written without any of the format's rules: what hostile files are made of."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tensor:
    """One header entry and its bytes; `entry` may say anything."""

    entry: dict
    data: bytes


@dataclass
class Checkpoint:
    config: dict
    tensors: dict[str, Tensor]
    files: dict[str, bytes] = field(default_factory=dict)  # Written last, over anything of that name.

    @staticmethod
    def read(directory: Path) -> Checkpoint:
        """All shards as one."""
        tensors = {}
        for path in sorted(directory.glob("*.safetensors")):
            raw = path.read_bytes()
            (length,) = struct.unpack("<Q", raw[:8])
            data = raw[8 + length:]
            for name, entry in json.loads(raw[8:8 + length]).items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    tensors[name] = Tensor({"dtype": entry["dtype"], "shape": entry["shape"]}, data[begin:end])
        return Checkpoint(json.loads((directory / "config.json").read_text()), tensors)

    def header(self) -> dict:
        """The honest header of these tensors, in order."""
        header, offset = {}, 0
        for name, tensor in self.tensors.items():
            header[name] = {**tensor.entry, "data_offsets": [offset, offset + len(tensor.data)]}
            offset += len(tensor.data)
        return header

    def data(self) -> bytes:
        return b"".join(tensor.data for tensor in self.tensors.values())

    def write(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(self.config))
        (directory / "model.safetensors").write_bytes(safetensors(self.header(), self.data()))
        for name, content in self.files.items():
            (directory / name).write_bytes(content)


def safetensors(header: dict | bytes, data: bytes, length: int | None = None) -> bytes:
    """The container around any header and data; `length` lies about the header's size."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data
