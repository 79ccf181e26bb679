"""Bytes taken of the GPUs' memory."""

from __future__ import annotations

import os
import subprocess


def used() -> int:
    """Bytes, by all processes on all GPUs."""
    return sum(_told("memory.used"))


def used_and_total_of_first() -> tuple[int, int]:
    """Bytes of the GPU that programs take unless they are told otherwise."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    first = ["-i", visible] if visible else []
    return _told("memory.used", *first)[0], _told("memory.total", *first)[0]


def _told(what: str, *options: str) -> list[int]:
    told = subprocess.run(["nvidia-smi", *options, f"--query-gpu={what}", "--format=csv,noheader,nounits"], capture_output=True, text=True,
                          check=True).stdout
    return [int(line) << 20 for line in told.split()]
