"""Times FreeToken in its own offline class LLM, for compare_freetoken.py: one request a line on standard input, one line of JSON as the
answer. Its first line says versions.

    {"load": {"strategy", "gpu_bytes", "context", "sequences", "options"}}      makes the engine
    {"turn": {"prompt", "prompts", "batches", "steps"}}                         seconds of prompts, and of every decode step
    {"logits": {"prompt": ids, "forced": ids, "output": FILE}}                  float32 [tokens, vocab]: behind the prompt, and behind each forced id

Times are those of the wall clock between tokens that come out: FreeToken's scheduler and sampling are in them. All ids are random, and none
are asked for twice, so that its prefix cache has none of them. Decoding samples at a temperature at which all tokens are alike, so that experts
are chosen as evenly as dsv4 bench has them."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import random
import sys
import time
from importlib.metadata import version

import gpu_memory

CUDA_CONTEXT = 0.6e9  # Bytes that FreeToken does not count, since the context is there before it looks.
FLAT = 100.0  # A temperature.
START_IDS = 32  # Of a sequence that decodes.


def memory_ratio(gpu_bytes: float, used: int, total: int) -> float:
    """FreeToken takes a share of what is free once the CUDA context is there."""
    free = total - used - CUDA_CONTEXT
    ratio = (gpu_bytes - CUDA_CONTEXT) / free
    if not 0 < ratio <= 1:
        raise ValueError(f"{gpu_bytes / 1e9:.2f} GB of GPU memory wanted, {free / 1e9:.2f} GB are free")
    return ratio


def gaps(stamps: list[tuple[float, int]], batch: int) -> list[float]:
    """Seconds between the steps that gave a token to every sequence of the batch; `stamps`: time and tokens."""
    times = [at for at, tokens in stamps if tokens == batch]
    return [after - before for before, after in zip(times, times[1:])]


def engine_class():
    """Its class LLM with a clock: made here, because importing it takes a quarter of a minute."""
    import torch
    from freetoken.core import SamplingParams
    from freetoken.llm.llm import LLM, RequestAllFinished

    class Timed(LLM):
        def offline_send_result(self, reply):
            tokens = sum(hasattr(message, "next_token") for message in reply)
            if tokens:
                self.stamps.append((time.perf_counter(), tokens))
            super().offline_send_result(reply)

        def stamps_of(self, prompts: list[list[int]], tokens: int, temperature: float) -> tuple[float, list[tuple[float, int]]]:
            """When it began, and when tokens came out."""
            wanted = SamplingParams(temperature=temperature, ignore_eos=True, max_tokens=tokens)
            self.pending_requests = [(prompt, wanted, None) for prompt in prompts]
            self.status_map, self.counter, self.stamps = {}, 0, []
            torch.cuda.synchronize()
            begin = time.perf_counter()
            with contextlib.suppress(RequestAllFinished):
                self.run_forever()
            torch.cuda.synchronize()
            return begin, self.stamps

    return Timed


class Timer:
    def __init__(self) -> None:
        self.random = random.Random(1)
        self.engine_class = engine_class()

    def load(self, model: str, wanted: dict) -> dict:
        self.used_before, total = gpu_memory.used_and_total_of_first()
        ratio = memory_ratio(wanted["gpu_bytes"], self.used_before, total)
        options = {"moe_strategy": wanted["strategy"], "max_seq_len_override": wanted["context"], "max_running_req": wanted["sequences"],
                   "memory_ratio": ratio, "moe_cache_auto": wanted["strategy"] != "cpu"} | wanted["options"]
        print("LLM", options, flush=True)
        self.llm = self.engine_class(model, **options)
        config = self.llm.engine.config
        self.vocab_size = config.model_config.vocab_size
        return {"strategy": config.moe_strategy, "slots": config.moe_cache_size,
                "experts": config.model_config.num_moe_layers * config.model_config.num_experts, "pass_tokens": self.llm.prefill_budget,
                "memory_ratio": round(ratio, 4), "gpu_bytes": self.gpu_bytes()}

    def gpu_bytes(self) -> int:
        return gpu_memory.used_and_total_of_first()[0] - self.used_before

    def ids(self, count: int) -> list[int]:
        return [self.random.randrange(3, self.vocab_size) for _ in range(count)]

    def turn(self, wanted: dict) -> dict:
        prompts = []
        for _ in range(wanted["prompts"]):
            begin, stamps = self.llm.stamps_of([self.ids(wanted["prompt"])], 1, 0.0)
            prompts.append(stamps[0][0] - begin)
        decode = {}
        for batch in wanted["batches"]:
            _, stamps = self.llm.stamps_of([self.ids(START_IDS) for _ in range(batch)], wanted["steps"], FLAT)
            decode[str(batch)] = gaps(stamps, batch)
        return {"prefill_seconds": prompts, "decode_seconds": decode, "gpu_bytes": self.gpu_bytes()}

    def logits(self, wanted: dict) -> dict:
        import numpy as np

        forced, kept = list(wanted["forced"]), []
        sampler = self.llm.engine.sampler
        sample = sampler.sample

        def keep(logits, arguments):
            chosen = sample(logits, arguments)
            if len(kept) < len(forced):
                chosen.fill_(forced[len(kept)])
            kept.append(logits.detach().float().cpu().numpy().copy())
            return chosen

        sampler.sample = keep
        try:
            self.llm.stamps_of([wanted["prompt"]], len(forced) + 1, 0.0)
        finally:
            sampler.sample = sample
        said = list(self.llm.status_map[0].output_ids)
        if said[:len(forced)] != forced:
            raise RuntimeError(f"FreeToken went on with {said[:4]}, not with {forced[:4]} as it was made to")
        rows = np.concatenate(kept)[:len(forced) + 1]
        np.save(wanted["output"], rows)
        return {"rows": len(rows)}


def main() -> None:
    faulthandler.enable()  # A crash in the library names the call that it was in.
    # FreeToken writes to standard output too: that goes to the log, and only answers to where the caller reads.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(told: dict) -> None:
        print(json.dumps(told), file=answers, flush=True)

    import torch
    import transformers
    import triton

    # Compiled for another PyTorch, maybe: they load, or say so here.
    for extension in ("_cpu_moe", "_pinned_tensor"):
        importlib.import_module(f"freetoken.kernel.{extension}")
    timer = Timer()
    answer({"freetoken": version("freetoken"), "python": sys.version.split()[0], "torch": torch.__version__, "triton": triton.__version__,
            "transformers": transformers.__version__})
    for line in sys.stdin:
        request = json.loads(line)
        if "load" in request:
            answer(timer.load(sys.argv[1], request["load"]))
        elif "turn" in request:
            answer(timer.turn(request["turn"]))
        else:
            answer(timer.logits(request["logits"]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Its threads do not end by themselves.


if __name__ == "__main__":
    main()
