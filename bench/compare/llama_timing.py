"""Times llama.cpp on workloads, as dsv4_timing.cc does dsv4: one workload a line on standard input, {"seconds": [of
its steps]} as the answer. The time of a step is that of llama_decode until logits are in memory, without sampling."""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from pathlib import Path

import llama

MAX_RESTORE_NMSE = 1e-3  # That of rounding is below 1e-4.


def state_after(model: llama.Model, ids: list[int], file: Path, threads: int) -> tuple[ctypes.Array, int]:
    """The state that has read `ids`: from `file` when that is younger than the model, else computed and written there."""
    if file.exists() and file.stat().st_mtime > model.path.stat().st_mtime:
        data = file.read_bytes()
        return (ctypes.c_uint8 * len(data)).from_buffer_copy(data), len(ids)
    context = llama.Context(model, len(ids) + 1, 1, threads)
    context.prefill(ids)
    saved = context.save()
    straight = context.decode([ids[0]])
    context.clear()
    context.restore(saved)
    # A sequence restored wrongly would be timed on something else than what it stands for. Restoring changes the order of
    # cache rows and so of sums, hence not bit for bit.
    restored = context.decode([ids[0]])
    error = float(((restored - straight) ** 2).sum() / (straight**2).sum())
    if not error < MAX_RESTORE_NMSE:
        raise RuntimeError(f"llama.cpp: a restored sequence of {len(ids)} tokens continues with an error of {error} (NMSE)")
    context.close()
    file.write_bytes(bytes(saved[0]))
    return saved


class Timer:
    """A loaded model and a context for each kind of workload met so far, since making one costs."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.threads = arguments.threads
        self.model = llama.Model(arguments.gguf, arguments.gpu, arguments.cpu_experts)
        self.contexts: dict[tuple[int, int], llama.Context] = {}

    def seconds(self, workload: dict) -> list[float]:
        sequences, steps, depth_ids = workload["sequences"], workload["steps"], workload["depth_ids"]
        length = len(depth_ids) + sum(len(step[0]) for step in steps)
        if (length, sequences) not in self.contexts:
            self.contexts[length, sequences] = llama.Context(self.model, length, sequences, self.threads)
        context = self.contexts[length, sequences]
        context.clear()
        if depth_ids:
            state = state_after(self.model, depth_ids, Path(workload["state_file"]), self.threads)
            for sequence in range(sequences):
                context.restore(state, sequence)
        times = []
        for step in steps:
            start = time.perf_counter()
            if len(step[0]) > 1:
                context.prefill(step[0])
            else:
                context.decode([chunk[0] for chunk in step])
            times.append(time.perf_counter() - start)
        return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--cpu-experts", type=int, default=0)
    arguments = parser.parse_args()
    timer = Timer(arguments)
    print(json.dumps(llama.version()), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": timer.seconds(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
