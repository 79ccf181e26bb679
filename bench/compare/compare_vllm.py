"""dsv4 beside vLLM on one GPU, both as servers. One random checkpoint of `dsv4 synth` that both read, checked to be the same model, then loads of
one client, `dsv4 bench --server`, on each in turn. ./dev compare --rival vllm

Where the GPU has room for both, both servers stay loaded and every row of the table is timed in turns. Else a server is started for its turn of all rows.
The check asks vLLM for a greedy answer with log-probabilities of some ids at every token, and compares those of dsv4 behind the same tokens.
A ratio is how many times faster dsv4 is: in tokens a second, and in rows of prompts in time to the first token."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from array import array
from dataclasses import replace
from pathlib import Path

import gpu_memory
import logits_file
import machine
import rival_install
import vllm_files
import vllm_report
from engine_process import EngineError
from http_server import HttpServer, free_port
from rival_install import VLLM
from vllm_report import Figures, Outcome, Row

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ("dsv4", "vLLM")
NAME = "model"  # That requests call it by.
CONTEXT = 40960
# Tokens of the prompt and of the answer that are checked, and ids whose log-probabilities vLLM tells: its most.
CHECK_PROMPT, CHECK_ANSWER, CHECK_IDS = 256, 48, 128
# Against `release` a rival's own roundings add to the yardstick, as FreeToken's do (compare_freetoken.py).
MOST_OF_YARDSTICK = 5
# Bytes beside weights that either needs at least, and that contexts of two processes take.
WORKING_BYTES, CONTEXT_BYTES = 16e9, 3e9
SHARE_ALONE = 0.92  # Of the GPU's memory: vLLM's own default.


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev compare --rival vllm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [row.name for row in vllm_report.ROWS]
    parser.add_argument("-m", "--model", type=Path, help="checkpoint of the release's format (default: a new one, see --shape)")
    parser.add_argument("--shape", default="flash", help="shape of the synthetic checkpoint (flash)")
    parser.add_argument("--layers", type=int, default=12, help="of the synthetic checkpoint: the shape's first N (12)")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=names, metavar="NAME,...", help=f"of {', '.join(names)} (all)")
    parser.add_argument("--seconds", type=float, metavar="N", help="a row is measured for (as long as fits 12 layers on an H200: 2 to 8)")
    parser.add_argument("--turns", type=int, default=1, help="turns of each server in a row (1)")
    parser.add_argument("--only", choices=["check", "time"], help="check: no timing; time: no check, and the output says so")
    parser.add_argument("--gpu-memory", type=float, metavar="GB", help="what either is told to take of the GPU's memory (half if that is enough, else 92 %%)")
    parser.add_argument("--alone", action="store_true", help="one server at a time, also where the GPU has room for both")
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "cuda" / "dsv4", help="dsv4 with the CUDA backend (build/cuda/dsv4)")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="install vLLM from the wheels of this folder; the rest is that of this Python, "
                        "versions aside (default: everything from PyPI)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "compare", help="where checkpoint, environment, caches and logs are kept (build/compare)")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="where the synthetic checkpoint is kept instead, such as a tmpfs")
    parser.add_argument("--options", type=str.split, default=[], metavar="TEXT", help="further options of `dsv4 serve`; the report names them")
    parser.add_argument("--rival-options", type=str.split, default=[], metavar="TEXT", help="further options of `vllm serve`, such as "
                        "'--moe-backend humming'; the report names them")
    parser.add_argument("--start-seconds", type=float, default=900, metavar="N", help="for a server to be ready (900)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    arguments = parser.parse_args(words)
    if arguments.turns < 1 or (arguments.seconds is not None and arguments.seconds <= 0):
        parser.error("--turns is at least 1, --seconds more than 0")
    if unknown := [name for name in arguments.rows if name not in names]:
        parser.error(f"--rows: {', '.join(unknown)}: wanted of {', '.join(names)}")
    arguments.rows = [row for row in vllm_report.ROWS if row.name in arguments.rows]
    return arguments


def share(arguments: argparse.Namespace, weights: int, used: int, total: int) -> tuple[float, bool]:
    """Bytes of the GPU's memory for either, and whether both are loaded at once."""
    half = (total - used - CONTEXT_BYTES) / 2
    if arguments.gpu_memory:
        half = arguments.gpu_memory * 1e9
        together = 2 * half + CONTEXT_BYTES <= total - used
    else:
        together = 1.1 * weights + WORKING_BYTES <= half
    if together and not arguments.alone:
        return half, True
    return (arguments.gpu_memory * 1e9 if arguments.gpu_memory else SHARE_ALONE * total - used), False


def dsv4_command(arguments: argparse.Namespace, model: Path, port: int, gpu_bytes: float) -> list[str]:
    """A prompt ends as vLLM's template ends it: with no thinking."""
    return [*map(str, [arguments.binary, "serve", "-m", model, "--name", NAME, "--backend", "cuda", "--port", port, "--context", CONTEXT,
                       "--gpu-memory", f"{gpu_bytes / 1e9:.2f}", "--thinking-mode", "chat", *arguments.options])]


def vllm_command(arguments: argparse.Namespace, python: Path, model: Path, port: int, share_of_gpu: float) -> list[str]:
    """vLLM's recipe for V4 on an H200. No request repeats another's prompt, so a prefix cache has nothing to give."""
    return [*map(str, [python, "-m", "vllm.entrypoints.cli.main", "serve", model, "--served-model-name", NAME, "--host", "127.0.0.1", "--port", port,
                       "--kv-cache-dtype", "fp8", "--block-size", 256, "--max-model-len", CONTEXT, "--max-num-seqs", 256,
                       "--gpu-memory-utilization", f"{share_of_gpu:.4f}", "--no-enable-prefix-caching", "--no-enable-flashinfer-autotune",
                       "--max-logprobs", CHECK_IDS, "--disable-uvicorn-access-log", *arguments.rival_options])]


def bench_command(arguments: argparse.Namespace, row: Row, url: str, seed: int) -> list[str]:
    command = [arguments.binary, "bench", "--server", url, "--json", "--check", "off", "--seed", seed, "--streams", row.streams, "--input-tokens", row.prompt,
               "--output-tokens", row.answer, "--warm-up", row.warm_up, "--seconds", arguments.seconds or row.seconds]
    return [*map(str, command), *(["--length-spread", str(row.spread)] if row.spread else [])]


def logits_command(arguments: argparse.Namespace, model: Path, numerics: str, ids: Path, output: Path, gpu_bytes: float | None) -> list[str]:
    """`gpu_bytes`: of the GPU, as it is timed. None: the CPU computes it."""
    where = ["--backend", "cpu"] if gpu_bytes is None else ["--backend", "cuda", "--gpu-memory", f"{gpu_bytes / 1e9:.2f}"]
    return [str(arguments.binary), "logits", *where, "-m", str(model), "--numerics", numerics, "--tokens", str(ids), "--output", str(output)]


def environment(folder: Path) -> dict[str, str]:
    """Environment of vLLM: offline, no report of its use, its caches in the folder, and kernels compiled when they are first used. Variables that
    are set say otherwise."""
    cache = folder / "vllm-cache"
    cache.mkdir(parents=True, exist_ok=True)
    folders = {"XDG_CACHE_HOME": "", "VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TILELANG_CACHE_DIR": "tilelang", "DG_JIT_CACHE_DIR": "deep_gemm",
               "FLASHINFER_WORKSPACE_BASE": "flashinfer", "CUTE_DSL_CACHE_DIR": "cute", "TVM_FFI_CACHE_DIR": "tvm", "CUDA_CACHE_PATH": "driver",
               "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    defaults = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_DEEP_GEMM_WARMUP": "skip",
                "VLLM_USE_FLASHINFER_SAMPLER": "0", "CUDA_CACHE_MAXSIZE": str(4 << 30)}
    # Ninja may be a script beside this Python.
    path = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
    return {name: str((cache / place).resolve()) for name, place in folders.items()} | defaults | os.environ | path


def check_request(prompt: list[int], ids: list[int]) -> dict:
    return {"model": NAME, "prompt": prompt, "max_tokens": CHECK_ANSWER, "temperature": 0, "ignore_eos": True, "logprobs": len(ids), "logprob_token_ids": ids,
            "return_tokens_as_token_ids": True}


def read_answer(reply: dict, ids: list[int]) -> tuple[list[int], list[array]]:
    """Tokens of vLLM's answer, and the log-probabilities of `ids` at each."""
    told = reply["choices"][0]["logprobs"]
    tokens = [int(token.removeprefix("token_id:")) for token in told["tokens"]]
    if len(tokens) != CHECK_ANSWER:
        raise ValueError(f"vLLM: {len(tokens)} tokens of an answer, wanted {CHECK_ANSWER}")
    rows = []
    for number, top in enumerate(told["top_logprobs"]):
        found = {int(token.removeprefix("token_id:")): value for token, value in top.items()}
        if missing := [token for token in ids if token not in found]:
            raise ValueError(f"vLLM: no log-probability of {len(missing)} of {len(ids)} ids at token {number + 1} of the answer")
        rows.append(array("f", [found[token] for token in ids]))
    return tokens, rows


def centred(row: array) -> array:
    """Logits and log-probabilities are the same but for a number that all of a position share."""
    mean = math.fsum(row) / len(row)
    return array("f", [value - mean for value in row])


class Comparison:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.folder = arguments, arguments.folder
        self.model = machine.model_path(arguments, "-texts")
        self.rival_model = self.folder / f"{self.model.resolve().name}-vllm"
        self.report: dict = {"model": self.model.name, "servers": {}, "rows": []}
        self.servers: dict[str, HttpServer] = {}  # Those that run.
        self.failed = False

    def prepare(self) -> None:
        machine.check_gpu(self.arguments.binary)
        machine.provide_model(self.arguments, self.model, self.folder / "synth.log", fill_tokenizer)
        vllm_files.provide(self.model, self.rival_model)
        self.python = rival_install.install(VLLM, self.folder / "venv-vllm", self.arguments.wheels)
        self.env = environment(self.folder)
        used, self.total = gpu_memory.used_and_total_of_first()
        weights = sum(path.stat().st_size for path in self.model.glob("*.safetensors"))
        self.share, self.together = share(self.arguments, weights, used, self.total)
        self.report |= {"gpu_bytes": self.share, "together": self.together, "vllm": VLLM.pinned_version(), "check_is_off": self.arguments.only == "time"}
        print(f"{self.model.name}: {weights / 1e9:.1f} GB; either may take {self.share / 1e9:.1f} of {self.total / 1e9:.1f} GB of the GPU's memory, "
              f"{'both at once' if self.together else 'one after the other'}", flush=True)

    def start(self, name: str) -> None:
        """The server runs from then on; wait() waits until it answers."""
        port = free_port()
        if name == "dsv4":
            command, env = dsv4_command(self.arguments, self.model, port, self.share), None
        else:
            command, env = vllm_command(self.arguments, self.python, self.rival_model, port, self.share / self.total), self.env
        self.servers[name] = HttpServer(name, command, port, self.folder / f"{name.lower()}-serve.log", env)
        self.report["servers"][name] = {"command": command}

    def wait(self, name: str) -> None:
        seconds = self.servers[name].wait(self.arguments.start_seconds)
        self.report["servers"][name]["seconds_to_ready"] = seconds
        used, _ = gpu_memory.used_and_total_of_first()
        print(f"{name} is ready after {seconds:.0f} s; taken of the GPU's memory {used / 1e9:.1f} GB: {' '.join(self.report['servers'][name]['command'])}",
              flush=True)

    def end(self, name: str) -> None:
        self.servers.pop(name).stop()

    def check(self) -> None:
        """vLLM runs, and dsv4's server does not."""
        vocabulary = json.loads((self.model / "config.json").read_text())["vocab_size"]
        generator = random.Random(0)
        prompt = [generator.randrange(3, vocabulary) for _ in range(CHECK_PROMPT)]
        ids = generator.sample(range(3, vocabulary), min(CHECK_IDS, vocabulary - 3))
        answer, theirs = read_answer(self.servers["vLLM"].ask("/v1/completions", check_request(prompt, ids)), ids)
        if not self.together:
            self.end("vLLM")
        file = self.folder / "check.ids"
        file.write_text(json.dumps(prompt + answer[:-1]))
        outputs = {numerics: self.folder / f"check-{numerics}.npy" for numerics in ("release", "plain")}
        # The CPU computes beside the GPU.
        programs = [machine.Program(logits_command(self.arguments, self.model, numerics, file, output, self.share if numerics == "release" else None),
                                    self.folder / f"logits-{numerics}.log", f"dsv4 logits --numerics {numerics}") for numerics, output in outputs.items()]
        try:
            for program in programs:
                program.wait()
        finally:
            for program in programs:
                program.kill()
        whole = {numerics: logits_file.read_rows(output, CHECK_PROMPT - 1, CHECK_ANSWER) for numerics, output in outputs.items()}
        ours = {numerics: [centred(array("f", [row[token] for token in ids])) for row in rows] for numerics, rows in whole.items()}
        seen = logits_file.difference(ours["release"], ours["plain"], [centred(row) for row in theirs], MOST_OF_YARDSTICK)
        same = sum(row.index(max(row)) == token for row, token in zip(whole["release"], answer, strict=True))
        seen = replace(seen, top1=same / len(answer))
        print(f"Log-probabilities of {len(ids)} random ids behind a prompt of {CHECK_PROMPT} random ids and at the answer that vLLM chose, against dsv4's of "
              f"`release`: {seen}", flush=True)
        self.report["check"] = {**vars(seen), "ok": seen.ok()}
        if not seen.ok():
            raise EngineError("the logits disagree, so nothing is timed")

    def load(self, name: str, row: Row, seed: int) -> Figures:
        output = self.folder / f"{name.lower()}-{row.name}-{seed}.json"
        try:
            machine.run(bench_command(self.arguments, row, self.servers[name].url, seed), output.with_suffix(".log"), f"{name}, {row.name}", output)
        except EngineError as error:
            told = output.read_text()
            if not told:
                raise
            # Its report says more than its exit code.
            raise EngineError(f"{name}: {vllm_report.trouble(json.loads(told)) or error}") from None
        return vllm_report.figures(json.loads(output.read_text()))

    def compile(self) -> None:
        """Loads that are not counted. One that fails is told: its row shows the same again."""
        for row in vllm_report.ROWS:
            if row.name in vllm_report.COMPILING:
                try:
                    self.load("vLLM", replace(row, warm_up=0, seconds=2), 999)
                except (EngineError, ValueError) as error:
                    machine.say(f"compare: before anything is timed, {row.name}: {error}")

    def take_turns(self, row: Row) -> Outcome:
        """Prompts of a turn are those of no other, and both get the same."""
        turns: dict[str, list[Figures]] = {name: [] for name in SERVERS}
        for turn in range(self.arguments.turns):
            for name in SERVERS:
                turns[name].append(self.load(name, row, 1000 * (vllm_report.ROWS.index(row) + 1) + turn))
        return Outcome(row, turns["dsv4"], turns["vLLM"])

    def time_together(self) -> None:
        self.compile()
        print(f"\n{vllm_report.head()}", flush=True)
        for row in self.arguments.rows:
            try:
                self.say(self.take_turns(row))
            except (EngineError, ValueError) as error:
                self.row_failed(row, error)

    def time_alone(self) -> None:
        """Whole turns: what a server has shown is kept until the other has shown it too."""
        turns: dict[str, dict[str, list[Figures]]] = {row.name: {name: [] for name in SERVERS} for row in self.arguments.rows}
        for turn in range(self.arguments.turns):
            for name in SERVERS:
                if name not in self.servers:
                    self.start(name)
                    self.wait(name)
                if name == "vLLM":
                    self.compile()
                for row in self.arguments.rows:
                    try:
                        seen = self.load(name, row, 1000 * (vllm_report.ROWS.index(row) + 1) + turn)
                        turns[row.name][name].append(seen)
                        print(f"{name}, {row.name}: {seen}", flush=True)
                    except (EngineError, ValueError) as error:
                        self.row_failed(row, error)
                self.end(name)
        print(f"\n{vllm_report.head()}", flush=True)
        for row in self.arguments.rows:
            if all(turns[row.name].values()):
                self.say(Outcome(row, turns[row.name]["dsv4"], turns[row.name]["vLLM"]))

    def say(self, outcome: Outcome) -> None:
        print(outcome, flush=True)
        self.report["rows"].append(outcome.as_json())

    def row_failed(self, row: Row, error: Exception) -> None:
        """Other rows do not depend on this one."""
        self.failed = True
        self.report["rows"].append({"row": vars(row), "error": str(error)})
        machine.say(f"compare: {row.name}: {error}")

    def run(self) -> None:
        if self.together or self.arguments.only != "time":
            self.start("vLLM")
            self.wait("vLLM")
        if self.arguments.only != "time":
            self.check()
        if self.arguments.only == "check":
            return
        if self.arguments.only == "time":
            print("UNCHECKED: --only time", flush=True)
        if self.together:
            self.start("dsv4")
            self.wait("dsv4")
            self.time_together()
        else:
            self.time_alone()

    def stop(self) -> None:
        while self.servers:
            self.end(next(iter(self.servers)))


def fill_tokenizer(model: Path) -> None:
    vllm_files.fill_tokenizer(model / "tokenizer.json", json.loads((model / "config.json").read_text())["vocab_size"])


def main() -> int:
    arguments = parse()
    comparison = Comparison(arguments)
    try:
        comparison.prepare()
        comparison.run()
    except (EngineError, machine.StoppedError, ValueError) as error:
        comparison.report["error"] = str(error)
        raise
    finally:
        comparison.stop()
        if arguments.json:
            arguments.json.write_text(json.dumps(comparison.report, indent=2, default=str) + "\n")
    return 1 if comparison.failed else 0


if __name__ == "__main__":
    sys.exit(machine.end(main))
