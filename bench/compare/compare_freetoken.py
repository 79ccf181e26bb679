"""dsv4 beside FreeToken on a GPU that has no room for all experts. One random checkpoint of `dsv4 synth` that both read, checked to be the
same model, timed in turns. Both are told to take as much of the GPU's memory. ./dev compare --rival freetoken

FreeToken's engine stays in memory while its turns last, and is stopped while dsv4 has the machine; dsv4's turns are runs of `dsv4 bench`.
The table gives the median of each side and how many times faster dsv4 is.

--mode STRATEGY[:SPLIT[/SPLIT]...], as often as wanted: FreeToken's strategy beside dsv4's --experts.
  offload   a cache of experts on the GPU, and what is not there comes over the link      beside auto
  hybrid    the same, and the CPU multiplies a share of those that are not there          beside cached=50%,host=50%
  cpu       the CPU multiplies all experts of a decode step                               beside host=100%"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import freetoken_files
import freetoken_report
import logits_file
import machine
import rival_install
from engine_process import EngineError, EngineProcess
from freetoken_report import BATCHES

ROOT = Path(__file__).resolve().parents[2]
SPLITS = {"offload": "auto", "hybrid": "cached=50%,host=50%", "cpu": "host=100%"}
# Tokens whose logits are compared: a prompt, and ids that both are made to go on with.
CHECK_PROMPT, CHECK_FORCED = 64, 31
# Against `release` a rival's own roundings add to the yardstick (agreement.py), and FreeToken has more of them: 2.9 to 3.1 on an H100.
MOST_OF_YARDSTICK = 5
WARM_UP = {"prompts": 2, "steps": 32}


@dataclass(frozen=True)
class Mode:
    strategy: str
    splits: tuple[str, ...]


def mode(text: str) -> Mode:
    strategy, _, splits = text.partition(":")
    if strategy not in SPLITS:
        raise argparse.ArgumentTypeError(f"{strategy!r} is none of FreeToken's strategies {', '.join(SPLITS)}")
    found = tuple((splits or SPLITS[strategy]).split("/"))
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty split")
    return Mode(strategy, found)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev compare --rival freetoken", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, help="checkpoint of the release's format (default: a new one, see --shape)")
    parser.add_argument("--shape", default="flash", help="shape of the synthetic checkpoint (flash)")
    parser.add_argument("--layers", type=int, default=6, help="of the synthetic checkpoint: the shape's first N (6)")
    parser.add_argument("--mode", type=mode, action="append", dest="modes", metavar="STRATEGY[:SPLIT...]", help="see above (offload)")
    parser.add_argument("--gpu-memory", type=float, default=14, metavar="GB", help="what either is told to take of the GPU's memory (14)")
    parser.add_argument("--rival-gpu-memory", type=float, metavar="GB", help="what FreeToken is told instead, since what prompts need comes on top there; "
                        "the table says what it took (as --gpu-memory)")
    parser.add_argument("--prompt", type=int, default=8192, help="tokens of a prompt (8192)")
    parser.add_argument("--steps", type=int, default=96, help="tokens of an answer of FreeToken, of which "
                        f"{freetoken_report.WARM_UP_STEPS + 1} are not counted (96)")
    parser.add_argument("--turns", type=int, default=2, help="turns of each engine (2)")
    parser.add_argument("--only", choices=["check", "time"], help="check: no timing; time: no check, and the output says so")
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "cuda" / "dsv4", help="dsv4 with the CUDA backend (build/cuda/dsv4)")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="install FreeToken from the wheels of this folder; the rest is that of this Python, "
                        "versions aside (default: everything from PyPI)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "compare", help="where checkpoint, environment, caches and logs are kept (build/compare)")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="where the synthetic checkpoint is kept instead, such as a tmpfs")
    parser.add_argument("--rival-options", type=json.loads, default={}, metavar="JSON", help="further arguments of FreeToken's class LLM, such as "
                        "{\"moe_hybrid_max_fetch\": 1}; the report names them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    arguments = parser.parse_args(words)
    arguments.rival_gpu_memory = arguments.rival_gpu_memory or arguments.gpu_memory
    arguments.modes = arguments.modes or [mode("offload")]
    if arguments.turns < 1 or arguments.prompt < 1 or arguments.steps <= freetoken_report.WARM_UP_STEPS + 1:
        parser.error(f"--turns and --prompt are at least 1, --steps at least {freetoken_report.WARM_UP_STEPS + 2}")
    if not isinstance(arguments.rival_options, dict):
        parser.error("--rival-options is an object")
    return arguments


def bench_command(arguments: argparse.Namespace, model: Path, split: str) -> list[str]:
    return [*map(str, [arguments.binary, "bench", "--backend", "cuda", "-m", model, "--prefill", arguments.prompt, "--depth", 0, "--batch",
                       ",".join(map(str, BATCHES)), "--check", "off", "--repeat", 3, "--experts", split, "--gpu-memory", arguments.gpu_memory,
                       "--log-level", "info", "--json"])]


def logits_command(arguments: argparse.Namespace, model: Path, numerics: str, ids: Path, output: Path) -> list[str]:
    """`release` as it is timed, with experts in the cache: their bits are those of experts that are all on the GPU (docs/expert-tiers.md). `plain` is
    for the yardstick alone, and the CPU computes it."""
    where = ["--backend", "cpu"]
    if numerics == "release":
        where = ["--backend", "cuda", "--experts", "cached=100%", "--gpu-memory", str(arguments.gpu_memory)]
    return [str(arguments.binary), "logits", *where, "-m", str(model), "--numerics", numerics, "--tokens", str(ids), "--output", str(output)]


def load_request(arguments: argparse.Namespace, strategy: str) -> dict:
    """As much context as two prompts, as dsv4 bench plans for its longest row and a step's scratch."""
    return {"load": {"strategy": strategy, "gpu_bytes": arguments.rival_gpu_memory * 1e9, "context": 2 * arguments.prompt,
                     "sequences": max(BATCHES), "options": arguments.rival_options}}


def turn_request(arguments: argparse.Namespace, prompts: int, steps: int) -> dict:
    return {"turn": {"prompt": arguments.prompt, "prompts": prompts, "batches": list(BATCHES), "steps": steps}}


def environment(folder: Path) -> dict[str, str]:
    """Environment of FreeToken: offline, and its caches in the folder, unless variables say otherwise."""
    cache = folder / "freetoken-cache"
    cache.mkdir(parents=True, exist_ok=True)
    defaults = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "XDG_CACHE_HOME": str(cache), "TRITON_CACHE_DIR": str(cache / "triton"),
                "TVM_FFI_CACHE_DIR": str(cache / "tvm"), "FREETOKEN_BENCHBW_PATH": str(cache / "bandwidths.json")}
    return defaults | os.environ


class Comparison:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.folder = arguments, arguments.folder
        self.model = machine.model_path(arguments)
        self.rival_model = self.folder / f"{self.model.resolve().name}-freetoken"
        self.report: dict = {"model": self.model.name, "gpu_memory_gb": arguments.gpu_memory, "rival_gpu_memory_gb": arguments.rival_gpu_memory,
                              "rival_options": arguments.rival_options, "modes": []}
        self.engines: list[EngineProcess] = []  # Of the modes that are not through, in their order.
        self.logits: dict[str, list] = {}  # Of dsv4, by numerics.

    def prepare(self) -> None:
        machine.check_gpu(self.arguments.binary)
        self.python = rival_install.install(rival_install.FREETOKEN, self.folder / "venv-freetoken", self.arguments.wheels)
        self.report["unmet"] = rival_install.unmet(rival_install.FREETOKEN, self.python)
        self.env = environment(self.folder)
        # All import while the checkpoint is written, and take nothing of the GPU before they are told to load.
        for number, wanted in enumerate(self.arguments.modes, 1):
            self.start(f"{wanted.strategy}-{number}")
        machine.provide_model(self.arguments, self.model, self.folder / "synth.log")
        freetoken_files.provide(self.model, self.rival_model)
        if self.arguments.only != "time":
            self.compute_logits()
        for engine in self.engines:
            engine.wait()

    def start(self, name: str) -> None:
        command = [self.python, Path(__file__).with_name("freetoken_timing.py"), self.rival_model]
        self.engines.append(EngineProcess("FreeToken", command, self.folder / f"freetoken-{name}.log", self.env, wait=False))

    def compute_logits(self) -> None:
        vocabulary = json.loads((self.model / "config.json").read_text())["vocab_size"]
        generator = random.Random(0)
        self.ids = [generator.randrange(3, vocabulary) for _ in range(CHECK_PROMPT + CHECK_FORCED)]
        ids = self.folder / "check.ids"
        ids.write_text(json.dumps(self.ids))
        for numerics in ("release", "plain"):
            output = self.folder / f"check-{numerics}.npy"
            machine.run(logits_command(self.arguments, self.model, numerics, ids, output), self.folder / "logits.log", f"dsv4 logits --numerics {numerics}")
            self.logits[numerics] = logits_file.read_rows(output, CHECK_PROMPT - 1, CHECK_FORCED + 1)

    def measure(self, wanted: Mode, number: int) -> None:
        name = f"{wanted.strategy}-{number}"
        found: dict = {"strategy": wanted.strategy, "splits": {}}
        self.report["modes"].append(found)
        engine = self.engines[0]
        if wanted.strategy == "hybrid" and "moe_hybrid_max_fetch" not in self.arguments.rival_options:
            self.measure_bandwidths()
        found["about"] = engine.about | engine.answer(load_request(self.arguments, wanted.strategy), f"an engine of strategy {wanted.strategy}")
        print(f"\nFreeToken, {wanted.strategy}: {', '.join(f'{key} {value}' for key, value in found['about'].items())}", flush=True)
        if self.arguments.only != "time":
            self.check(engine, found, name)
        if self.arguments.only != "check":
            try:
                self.take_turns(engine, wanted, found, name)
            finally:
                self.print_tables(found)
        machine.say(engine.close())

    def measure_bandwidths(self) -> None:
        """The command that FreeToken's users are told to run before `hybrid`: it says which share of the missing experts the link brings. Without it one
        expert a layer is brought."""
        code = "import sys; from freetoken.cli import main; sys.exit(main(sys.argv[1:]))"
        machine.run([*map(str, [self.python, "-c", code, "bench", "bw", "--model", self.rival_model, "-o", self.env["FREETOKEN_BENCHBW_PATH"]])],
                    self.folder / "freetoken-bandwidths.log", "ft bench bw", env=self.env)

    def check(self, engine: EngineProcess, found: dict, name: str) -> None:
        output = self.folder / f"check-{name}.npy"
        engine.answer({"logits": {"prompt": self.ids[:CHECK_PROMPT], "forced": self.ids[CHECK_PROMPT:], "output": str(output)}}, "logits")
        theirs = logits_file.read_rows(output, 0, CHECK_FORCED + 1)
        seen = logits_file.difference(self.logits["release"], self.logits["plain"], theirs, MOST_OF_YARDSTICK)
        print(f"Logits behind {CHECK_PROMPT} random ids and behind {CHECK_FORCED} more, one by one, against dsv4's of `release`: {seen}", flush=True)
        found["check"] = {**vars(seen), "ok": seen.ok()}
        if not seen.ok():
            raise EngineError("the logits disagree, so nothing is timed")

    def take_turns(self, engine: EngineProcess, wanted: Mode, found: dict, name: str) -> None:
        arguments = self.arguments
        engine.answer(turn_request(arguments, **WARM_UP), "a turn that is not counted")
        # Complete turns alone are kept: rates of FreeToken, and of dsv4 by split.
        turns: list[tuple[list[float], dict[str, list[float]]]] = []
        found["turns"] = turns
        for turn in range(arguments.turns):
            answer = engine.answer(turn_request(arguments, 3, arguments.steps), f"turn {turn + 1}")
            found["gpu_bytes"] = answer["gpu_bytes"]
            ours = {}
            for i, split in enumerate(wanted.splits):
                stem = self.folder / f"dsv4-{name}-{i}-{turn + 1}"
                output = stem.with_suffix(".json")
                engine.pause()
                try:
                    machine.run(bench_command(arguments, self.model, split), stem.with_suffix(".log"), f"dsv4 bench --experts {split}", output)
                finally:
                    engine.resume()
                told = json.loads(output.read_text())
                ours[split] = freetoken_report.rates_of_dsv4(told, arguments.prompt)
                found["splits"][split] = told["experts"]["split"]
                found.setdefault("planned", {})[split] = planned(stem.with_suffix(".log").read_text(errors="replace"))
            turns.append((freetoken_report.rates_of_freetoken(answer, arguments.prompt), ours))

    def print_tables(self, found: dict) -> None:
        turns = found.pop("turns", [])
        if not turns:
            return
        checked = "UNCHECKED: --only time" if self.arguments.only == "time" else "checked above"
        for split in turns[0][1]:
            rows = freetoken_report.rows(self.arguments.prompt, [ours[split] for _, ours in turns], [theirs for theirs, _ in turns])
            print(f"\n{self.model.name}: FreeToken {found['strategy']} was told {self.arguments.rival_gpu_memory} GB of GPU memory and took "
                  f"{found['gpu_bytes'] / 1e9:.2f}, dsv4 --experts {split} ({found['splits'][split]}) was told {self.arguments.gpu_memory} and planned "
                  f"{found['planned'][split]}; {checked}; medians of {len(turns)} of {self.arguments.turns} turns\n{freetoken_report.table(rows)}", flush=True)
            found.setdefault("rows", {})[split] = [row.as_json() for row in rows]

    def end_mode(self) -> None:
        """However it went: the next engine needs the memory."""
        self.engines.pop(0).kill()

    def stop(self) -> None:
        while self.engines:
            self.end_mode()


def planned(log: str) -> str:
    """Bytes of the GPU's memory, as the first plan in a log of dsv4 says it."""
    match = re.search(r"^\s*together\s+([\d.]+ \w+)$", log, flags=re.MULTILINE)
    return match[1] if match else "an unknown amount"


def main() -> int:
    arguments = parse()
    comparison = Comparison(arguments)
    failed = False
    try:
        comparison.prepare()
        for line in comparison.report["unmet"]:
            print(line, flush=True)
        for number, wanted in enumerate(arguments.modes, 1):
            try:
                comparison.measure(wanted, number)
            except (EngineError, ValueError) as error:
                # The other modes do not depend on this one.
                failed = True
                comparison.report["modes"][-1]["error"] = str(error)
                machine.say(f"compare: {wanted.strategy}: {error}")
            comparison.end_mode()
    finally:
        comparison.stop()
        if arguments.json:
            arguments.json.write_text(json.dumps(comparison.report, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(machine.end(main))
