#!/usr/bin/env python3
"""dsv4's CUDA backend beside PyTorch on one GPU, as ratios.

    bench/cuda/beside_torch.py [--build build/cuda] [--layers 4] [--depth 2048] [--prefill 2048] [--skip-model]

Whole steps: transformers' DeepseekV4ForCausalLM against `cuda_step_bench flash,bf16 LAYERS`: a model of the Flash shape with as
many layers, bf16 weights, random on both sides. transformers runs as its documentation says a user would run it: no compilation; its own
choice of attention and of expert kernels, which the report names. Steps are timed from ids to logits on the device, and the median counts.
Equal shapes are not equal numbers: that both compute one function is what tests/golden shows, on small models.

Single ops: attention of one query over gathered keys and the indexer's scores and top-k, written in PyTorch and replayed as CUDA
graphs so that launching costs it nothing, against the lines of `cuda_ops_bench` of the same sizes. The PyTorch versions are checked
against float64 before they are timed.

Needs torch and transformers (tools/requirements.txt has the versions) and a GPU. Exit status 1 if a part failed.
"""

import argparse
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/golden"))

from random_model import Shape, transformers_config  # noqa: E402

HEADS, HEAD_DIM, WINDOW, TOP_K = 64, 512, 128, 512
INDEX_HEADS, INDEX_DIM = 64, 128
OPS_COLUMNS, STEP_COLUMNS = 5, 7  # Of the tables that the two programs print.


def flash(num_layers: int) -> Shape:
    ratios = [0, 0] + [4, 128] * num_layers
    return Shape(ratios[:num_layers], num_hash_layers=3, vocab=129280, hidden=4096, heads=HEADS, head_dim=HEAD_DIM, q_lora=1024,
                 o_groups=8, o_lora=1024, window=WINDOW, index_heads=INDEX_HEADS, index_dim=INDEX_DIM, index_topk=TOP_K, experts=256,
                 experts_per_token=6, inter=2048, swiglu_limit=10.0)


def lines_of(program: Path, *arguments: str) -> list[str]:
    result = subprocess.run([program, *arguments], capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{program.name} {' '.join(arguments)}: status {result.returncode}: {result.stderr.strip()[-400:]}")
    return result.stdout.splitlines()


def microseconds(lines: list[str], begin: str, num_columns: int) -> float:
    """The first of a line's `num_columns` numbers; its name may hold numbers too."""
    for line in lines:
        if line.startswith(begin):
            return float(line.split()[-num_columns])
    raise RuntimeError(f"no line begins with {begin!r} in:\n" + "\n".join(lines))


def report(name: str, ours: float, theirs: float) -> None:
    print(f"{name:<64} {ours:>12.1f} {theirs:>12.1f} {theirs / ours:>8.2f}x", flush=True)


@torch.no_grad()
def transformers_steps(layers: int, depth: int, prefill: int, steps: int = 16) -> tuple[float, float]:
    """Microseconds of one decode step behind `depth` tokens, and of a prefill."""
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM, DynamicCache

    config = DeepseekV4Config(**transformers_config(flash(layers)))
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = DeepseekV4ForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    print(f"transformers: {size / 1e9:.1f} GB, attention {config._attn_implementation}, experts {config._experts_implementation}")
    random = torch.Generator("cuda").manual_seed(1)

    def forward(cache, count: int) -> float:
        ids = torch.randint(0, config.vocab_size, (1, count), device="cuda", generator=random)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e6

    prefills = [forward(DynamicCache(config=config), prefill) for _ in range(4)]
    cache = DynamicCache(config=config)
    forward(cache, depth)
    decodes = [forward(cache, 1) for _ in range(4 + steps)]
    return statistics.median(decodes[4:]), statistics.median(prefills[1:])


def replayed(function, calls: int = 50) -> float:
    """Microseconds of one replay of `function` as a CUDA graph: median of 7 rounds."""
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    rounds = []
    for _ in range(8):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            graph.replay()
        end.record()
        end.synchronize()
        rounds.append(begin.elapsed_time(end) * 1000 / calls)
    return statistics.median(rounds[1:])


def attention(entries: int) -> float:
    """One query of 64 heads over the window and `TOP_K` gathered entries, keys and values being the same rows."""
    rows = torch.randn(entries, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    window = torch.randn(WINDOW, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    sink = torch.randn(HEADS, 1, device="cuda")
    chosen = torch.randperm(entries, device="cuda")[:TOP_K]

    def compute(q, window, rows, sink):
        keys = torch.cat([window, rows.index_select(0, chosen)])
        logits = torch.cat([(q @ keys.T).float() * HEAD_DIM**-0.5, sink.to(torch.float32)], dim=1)
        return torch.softmax(logits, dim=1)[:, :-1].to(q.dtype) @ keys

    got = compute(q, window, rows, sink)
    want = compute(*(t.double() for t in (q, window, rows, sink)))
    torch.testing.assert_close(got.double(), want, rtol=0.02, atol=0.02)
    return replayed(lambda: compute(q, window, rows, sink))


def indexer(entries: int) -> float:
    """Scores of one query against every entry, and the best `TOP_K` in ascending order."""
    keys = torch.randn(entries, INDEX_DIM, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(INDEX_HEADS, INDEX_DIM, device="cuda", dtype=torch.bfloat16)
    weights = torch.rand(INDEX_HEADS, device="cuda", dtype=torch.bfloat16)

    def scores(q, keys, weights):
        return weights @ torch.relu(q @ keys.T)

    torch.testing.assert_close(scores(q, keys, weights).double(), scores(q.double(), keys.double(), weights.double()),
                               rtol=0.03, atol=1.0)
    return replayed(lambda: torch.topk(scores(q, keys, weights), TOP_K).indices.sort())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/cuda", help="where cuda_step_bench and cuda_ops_bench are")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--depth", type=int, default=2048)
    parser.add_argument("--prefill", type=int, default=2048)
    parser.add_argument("--skip-model", action="store_true", help="single ops only")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("beside_torch: torch sees no GPU", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'':<64} {'dsv4, us':>12} {'torch, us':>12} {'faster':>9}")
    failed = False

    def part(measure) -> None:
        nonlocal failed
        try:
            measure()
        except Exception:  # One part that fails must not hide the others; the status says so.
            failed = True
            traceback.print_exc()

    def ops() -> None:
        lines = lines_of(options.build / "cuda_ops_bench", "of ")
        for entries in (2048, 32768):
            begin = f"attention {HEADS} heads, 1 sequences, {WINDOW} + {TOP_K} of {entries} entries"
            if any(line.startswith(begin) for line in lines):
                report(begin, microseconds(lines, begin, OPS_COLUMNS), attention(entries))
        for entries in (2048, 32768, 262144):
            begin = f"indexer_select {INDEX_HEADS} heads, top {TOP_K} of {entries} entries"
            report(begin, microseconds(lines, begin, OPS_COLUMNS), indexer(entries))

    def model() -> None:
        decode, prefill = transformers_steps(options.layers, options.depth, options.prefill)
        torch.cuda.empty_cache()
        lines = lines_of(options.build / "cuda_step_bench", "flash,bf16", str(options.layers), str(options.depth), "1",
                         str(options.prefill))
        print("\n".join(lines))
        report(f"decode, {options.layers} layers, depth {options.depth}", microseconds(lines, "decode", STEP_COLUMNS), decode)
        report(f"prefill of {options.prefill}, {options.layers} layers", microseconds(lines, "prefill", STEP_COLUMNS), prefill)

    part(ops)
    if not options.skip_model:
        part(model)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
