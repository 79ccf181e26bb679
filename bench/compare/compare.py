"""dsv4 beside llama.cpp: one random model in both formats, checked to be the same model, timed in turns. ./dev compare

The model is a checkpoint of `dsv4 synth` (or --model), rewritten as GGUF: FP8 matrices become Q8_0, FP4 experts keep their
bits, BF16 matrices stay. Both engines get the same random ids, the same threads and warm files, and take turns workload by workload. The
table gives the median of each side and how many times faster dsv4 is."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import agreement
import gguf_model
import gpu_memory
import unit_scales
from engine_process import EngineError, EngineProcess
from workloads import Workload

ROOT = Path(__file__).resolve().parents[2]
GOALS = {"cpu": {"decode, depth 0, batch 1": 1.5, "prefill 512": 2.0}, "cuda": {"decode, depth 0, batch 1": 1.5, "prefill 2048": 3.0}}
STAGES = ("check", "time")


def numbers(text: str) -> list[int]:
    """'0,2k' as [0, 2048]."""
    found = []
    for word in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(k?)", word)
        if not match:
            raise argparse.ArgumentTypeError(f"{word!r} is not a number of tokens such as 512 or 8k")
        found.append(int(match[1]) * (1024 if match[2] else 1))
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev compare", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, help="checkpoint with the release's names (default: a new one, see --shape)")
    parser.add_argument("--shape", default="mini", help="shape of the synthetic checkpoint (mini)")
    parser.add_argument("--layers", type=int, default=0, help="of the synthetic checkpoint: the shape's first N (all)")
    parser.add_argument("--format", default="release", help="format of the synthetic checkpoint: release (FP8 with MXFP4 experts) or nvfp4-experts, whose second-level "
                        "scales are then folded into the first (release)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "compare",
                        help="where checkpoints, GGUF files and filled sequences are kept (build/compare)")
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu", help="of both engines (cpu); cuda needs nvcc")
    parser.add_argument("--experts", default="", metavar="SPLIT", help="of dsv4 with --backend cuda, as of dsv4 run (all resident)")
    parser.add_argument("--gpu-memory", type=float, default=0, metavar="GB",
                        help="of dsv4 with --backend cuda, the most that it takes; what either takes is printed (0: what is free)")
    parser.add_argument("--n-cpu-moe", type=int, default=0, metavar="N",
                        help="of llama.cpp with --backend cuda: routed experts of the first N layers stay on the host (0)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(),
                        help="of both engines (one a core); with --backend cuda dsv4 multiplies experts with one less, as dsv4 run does")
    parser.add_argument("--rival-pass-tokens", type=int, default=512, metavar="N", help="of llama.cpp: most tokens of one pass, its -ub (512)")
    parser.add_argument("--numerics", choices=["release", "plain"], default="release", help="of dsv4 while timed (release)")
    parser.add_argument("--prefill", type=numbers, default="64,512,2k", metavar="N,...", help="prompt lengths (64,512,2k)")
    parser.add_argument("--depth", type=numbers, default="0,2k,8k", metavar="N,...", help="decode depths with batch 1 (0,2k,8k)")
    parser.add_argument("--batch", type=numbers, default="4,8", metavar="N,...", help="further batch sizes, at depth 0 (4,8)")
    parser.add_argument("--steps", type=int, default=16, help="decode steps of a turn (16)")
    parser.add_argument("--turns", type=int, default=3, help="turns of each engine (3)")
    parser.add_argument("--check-tokens", type=int, default=256, help="prompt on which the logits are compared (256)")
    parser.add_argument("--only", choices=STAGES, help="check: no timing; time: no check, and the output says so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--llama-cpp-flags", default="unknown", help=argparse.SUPPRESS)  # What ./dev built it with.
    arguments = parser.parse_args()
    if arguments.turns < 1 or arguments.steps < 1 or arguments.rival_pass_tokens < 1 or arguments.check_tokens <= agreement.DECODED:
        parser.error(f"--turns, --steps and --rival-pass-tokens are at least 1, --check-tokens more than {agreement.DECODED}")
    if arguments.model and arguments.layers:
        parser.error("--layers is of a synthetic checkpoint, not of --model")
    if arguments.backend == "cpu" and (arguments.experts or arguments.n_cpu_moe or arguments.gpu_memory):
        parser.error("--experts, --gpu-memory and --n-cpu-moe are for --backend cuda")
    arguments.build = ROOT / "build" / ("cuda" if arguments.backend == "cuda" else "release")
    return arguments


def prepare(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """The checkpoint and its GGUF file, made unless they are there."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    layers = f"-{arguments.layers}-layers" if arguments.layers else ""
    checkpoint = arguments.model or arguments.folder / f"{arguments.shape}-{arguments.format}{layers}"
    if not checkpoint.exists():
        say(f"Writing {checkpoint}")
        subprocess.run([arguments.build / "dsv4", "synth", checkpoint, "--shape", arguments.shape, "--format", arguments.format,
                        "--layers", str(arguments.layers)], check=True)
        if arguments.format == "nvfp4-experts":
            unit_scales.fold(checkpoint)
    gguf = arguments.folder / f"{checkpoint.resolve().name}.gguf"
    if not gguf.exists() or gguf.stat().st_mtime < (checkpoint / "config.json").stat().st_mtime:
        say(f"Writing {gguf}")
        gguf_model.write(checkpoint, gguf)
    return checkpoint, gguf


def read_anew(*paths: Path) -> None:
    """Puts files out of the page cache: a file that was just written lies there in small pages, and stays in them."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def time_in_turns(engines: list[EngineProcess], workload: Workload, request_of: dict[str, dict],
                  turns: int) -> tuple[dict[str, list[float]], list[float]]:
    """By engine, a number a turn: the seconds of its median step. And the read bandwidth of the machine in each turn. A turn before
    the first is not counted: files, caches and threads get warm."""
    seconds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    bandwidths: list[float] = []
    for turn in range(turns + 1):
        for engine in engines:
            answer = engine.answer(request_of[engine.name], str(workload))
            if turn > 0:
                seconds[engine.name].append(statistics.median(workload.counted(answer["seconds"])))
                bandwidths += [answer["read_bandwidth"]] if "read_bandwidth" in answer else []
    return seconds, bandwidths


def row(backend: str, workload: Workload, seconds: dict[str, list[float]], bandwidths: list[float]) -> dict:
    tokens = workload.tokens if workload.kind == "prefill" else workload.batch
    ours, theirs = (statistics.median(seconds[name]) for name in ("dsv4", "llama.cpp"))
    turns = [b / a for a, b in zip(seconds["dsv4"], seconds["llama.cpp"])]
    return {"workload": str(workload), "seconds": seconds, "read_bandwidths": bandwidths, "dsv4_tokens_per_second": tokens / ours,
            "llama_cpp_tokens_per_second": tokens / theirs, "ratio": theirs / ours, "ratio_of_turns": [min(turns), max(turns)],
            "goal": GOALS[backend].get(str(workload))}


def print_row(found: dict) -> None:
    low, high = found["ratio_of_turns"]
    goal = ""
    if found["goal"]:
        goal = f"goal {found['goal']}x: {'reached' if found['ratio'] >= found['goal'] else 'MISSED'}"
    slow, fast = (round(edge(found["read_bandwidths"]) / 1e9) for edge in (min, max))
    print(f"{found['workload']:28}{found['dsv4_tokens_per_second']:10.1f}{found['llama_cpp_tokens_per_second']:12.1f}"
          f"{found['ratio']:9.2f}x   {f'{low:.2f} to {high:.2f}':14}{f'{slow} to {fast}':10}{goal}".rstrip(), flush=True)


def dsv4_flags(arguments: argparse.Namespace) -> list[str]:
    flags = ["--backend", arguments.backend, *(["--experts", arguments.experts] if arguments.experts else [])]
    return [*flags, "--gpu-memory", str(arguments.gpu_memory)] if arguments.gpu_memory else flags


def rival(arguments: argparse.Namespace, gguf: Path) -> EngineProcess:
    command = [sys.executable, Path(__file__).with_name("llama_timing.py"), gguf, arguments.threads]
    command += ["--pass-tokens", arguments.rival_pass_tokens]
    command += ["--gpu", "--cpu-experts", arguments.n_cpu_moe] if arguments.backend == "cuda" else []
    return EngineProcess("llama.cpp", command, arguments.folder / "llama.cpp.log")


def say(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)


def main() -> int:
    arguments = parse()
    checkpoint, gguf = prepare(arguments)
    report: dict = {"model": checkpoint.name, "threads": arguments.threads, "processor": processor(), "checked": False,
                    "commit": commit()}
    if arguments.only != "time":
        theirs = rival(arguments, gguf)
        found = agreement.check(arguments.build / "dsv4", checkpoint, theirs, arguments.check_tokens, arguments.threads, dsv4_flags(arguments))
        say(theirs.close())
        print(f"Logits of {arguments.check_tokens} random tokens, the last {agreement.DECODED} one by one, dsv4 against llama.cpp; "
              "yardstick: dsv4's two numerics against each other:")
        for one in found:
            print(f"  {one}")
        report |= {"agreement": agreement.as_json(found), "checked": all(one.ok() for one in found)}
    failed = arguments.only != "time" and not report["checked"]
    if arguments.only != "check" and not failed:
        report |= measure(arguments, checkpoint, gguf)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if failed else 0


def measure(arguments: argparse.Namespace, checkpoint: Path, gguf: Path) -> dict:
    read_anew(gguf, *checkpoint.glob("*.safetensors"))
    workloads = [Workload("prefill", tokens) for tokens in arguments.prefill]
    workloads += [Workload("decode", arguments.steps, depth) for depth in arguments.depth]
    workloads += [Workload("decode", arguments.steps, 0, batch) for batch in arguments.batch]
    if not workloads:
        raise EngineError("--prefill, --depth and --batch name no workload")
    ours = [arguments.build / "dsv4_timing", checkpoint, arguments.threads, arguments.numerics, max(workload.batch for workload in workloads),
            max(workload.positions() for workload in workloads), arguments.backend, arguments.experts, arguments.gpu_memory]
    engines = [EngineProcess("dsv4", ours, arguments.folder / "dsv4.log"), rival(arguments, gguf)]
    about = {engine.name: engine.about for engine in engines}
    about["llama.cpp"] |= {"flags": arguments.llama_cpp_flags, "pass_tokens": arguments.rival_pass_tokens}
    if arguments.n_cpu_moe:
        about["llama.cpp"]["n_cpu_moe"] = arguments.n_cpu_moe
    vocab_size = about["llama.cpp"].pop("vocab_size")
    print(f"\n{checkpoint.name}, {arguments.backend}, {arguments.threads} threads of {processor()}")
    for name, facts in about.items():
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in facts.items())}")
    print(f"{'UNCHECKED: --only time' if arguments.only == 'time' else 'checked above'}; medians of {arguments.turns} turns\n")
    print(f"{'tokens/s':28}{'dsv4':>10}{'llama.cpp':>12}{'ratio':>10}   {'turn by turn':14}GB/s", flush=True)
    rows = []
    for workload in workloads:
        # State files of dsv4 and llama.cpp stand side by side, each beside its model.
        requests = {"dsv4": workload.request(vocab_size, gguf.with_suffix(".dsv4")),
                    "llama.cpp": workload.request(vocab_size, gguf.with_suffix(".llama"))}
        rows.append(row(arguments.backend, workload, *time_in_turns(engines, workload, requests, arguments.turns)))
        print_row(rows[-1])
    memory = {}
    for engine in engines:
        before = gpu_memory.used() if arguments.backend == "cuda" else 0
        say(engine.close())
        if arguments.backend == "cuda":
            memory[engine.name] = before - gpu_memory.used()
    if memory:
        print("GPU memory at the end: " + ", ".join(f"{name} {used / 1e9:.2f} GB" for name, used in memory.items()))
    return {"engines": about, "rows": rows, "gpu_memory": memory}


def processor() -> str:
    match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    return match[1] if match else platform.machine()


def commit() -> str:
    return subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True,
                          check=False).stdout.strip()


def stopped(number: int, _frame) -> None:
    raise EngineError(f"stopped by signal {number}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stopped)  # Of `timeout`, which says nothing.
    try:
        sys.exit(main())
    except EngineError as error:
        say(f"compare: {error}")
        sys.exit(1)
