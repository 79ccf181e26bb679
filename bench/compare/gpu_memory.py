"""What is taken of the GPUs' memory."""

from __future__ import annotations

import subprocess


def used() -> int:
    """Bytes, by all processes on all GPUs."""
    told = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True,
                          check=True).stdout
    return sum(int(line) for line in told.split()) << 20
