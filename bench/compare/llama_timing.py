"""Times llama.cpp on workloads, as dsv4_timing.cc does dsv4: one workload a line on standard input, {"seconds": [of
its steps]} as the answer. The time of a step is that of llama_decode until logits are in memory, without sampling.

A line {"logits_of": ids, "decoded": N, "output": file} has the logits of all ids written, the last N read one at a time."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import sys
import time
from pathlib import Path

import numpy as np

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
        self.threads, self.pass_tokens = arguments.threads, arguments.pass_tokens
        self.model = llama.Model(arguments.gguf, arguments.gpu, arguments.cpu_experts)
        self.contexts: dict[tuple[int, int], llama.Context] = {}

    def seconds(self, workload: dict) -> list[float]:
        sequences, steps, depth_ids = workload["sequences"], workload["steps"], workload["depth_ids"]
        length = len(depth_ids) + sum(len(step[0]) for step in steps)
        if (length, sequences) not in self.contexts:
            self.contexts[length, sequences] = llama.Context(self.model, length, sequences, self.threads, self.pass_tokens)
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


    def logits(self, request: dict) -> dict:
        ids, decoded = request["logits_of"], request["decoded"]
        context = llama.Context(self.model, len(ids), 1, self.threads, self.pass_tokens)
        rows = [context.prefill(ids[:-decoded], all_logits=True)] + [context.decode([token]) for token in ids[-decoded:]]
        np.save(request["output"], np.concatenate(rows))
        context.close()
        return {"tokens": len(ids)}


def main() -> None:
    faulthandler.enable()  # A crash in the library names the call that it was in.
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("--pass-tokens", type=int, default=512)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--cpu-experts", type=int, default=0)
    arguments = parser.parse_args()
    timer = Timer(arguments)
    print(json.dumps(llama.version() | {"vocab_size": timer.model.vocab_size}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = timer.logits(request) if "logits_of" in request else {"seconds": timer.seconds(request)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
