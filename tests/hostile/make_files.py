#!/usr/bin/env python3
"""Writes files/: whole files that people end up with under the name model.safetensors, and two classic attacks."""

import struct
from pathlib import Path

from checkpoint import safetensors

FILES = Path(__file__).resolve().parent / "files"
BYTE = {"dtype": "U8", "shape": [1]}


def main() -> None:
    FILES.mkdir(exist_ok=True)
    contents = {
        # A clone without Git LFS.
        "lfs_pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4977229368\n",
        # A download page saved in place of the file.
        "html_page": b"<!DOCTYPE html><html><head><title>401</title></head><body>Invalid credentials</body></html>\n",
        # A PyTorch pickle (a zip archive) renamed.
        "zip_archive": b"PK\x03\x04" + b"\0" * 60,
        # A sparse download: the right size in the header, all zeros on disk.
        "all_zeros": b"\0" * 4096,
        # Reads the header length as a signed number, and a reader walks backwards.
        "negative_length": struct.pack("<q", -8) + b"{}",
        # Two tensors share their byte: one of them would change under the other's name.
        "overlap": safetensors({"a": {**BYTE, "data_offsets": [0, 1]}, "b": {**BYTE, "data_offsets": [0, 1]}}, b"x"),
    }
    for name, content in contents.items():
        (FILES / f"{name}.safetensors").write_bytes(content)


if __name__ == "__main__":
    main()
