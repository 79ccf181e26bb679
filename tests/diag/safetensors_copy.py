"""Damaged copies of checkpoints: one file's tensors read, exchanged and written in place."""

import json
import pathlib
import shutil
import struct


class Copy:
    """A copy of a checkpoint directory with one model.safetensors, changed in memory and written by save()."""

    def __init__(self, source, destination):
        self.directory = pathlib.Path(destination)
        shutil.copytree(source, self.directory)
        self.path = self.directory / "model.safetensors"
        data = self.path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        self.header = json.loads(data[8:8 + length])
        self.body = bytearray(data[8 + length:])

    def names(self, suffix):
        return [name for name in self.header if name.endswith(suffix)]

    def swap(self, first, second):
        """Exchanges all tensors `first`.* and `second`.*, by name."""
        suffixes = [name.removeprefix(first + ".") for name in self.header if name.startswith(first + ".")]
        if not suffixes:
            raise AssertionError(f"no tensor {first}.*")
        for suffix in suffixes:
            a, b = (f"{base}.{suffix}" for base in (first, second))
            self.header[a], self.header[b] = self.header[b], self.header[a]

    def bytes(self, name):
        """The tensor's bytes, to be changed in place."""
        begin, end = self.header[name]["data_offsets"]
        return memoryview(self.body)[begin:end]

    def set_float(self, name, value):
        self.bytes(name)[:] = struct.pack("<f", value)

    def save(self):
        header = json.dumps(self.header).encode()
        header += b" " * (-len(header) % 8)
        self.path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(self.body))
        return self.directory
