"""What side-by-sides on a GPU share: a command with its log, the random checkpoint, signals, and errors that end a comparison."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gpu_memory
from engine_process import EngineError, how_it_ended
from rival_install import last_lines

LINES_OF_LOG = 20


class StoppedError(RuntimeError):
    """By a signal: there is no next mode, nor row."""


class Program:
    """A program that runs beside its caller until wait(). Standard error goes to `log`, and standard output too unless `output` is given."""

    def __init__(self, command: list[str], log: Path, what: str, output: Path | None = None, env: dict[str, str] | None = None) -> None:
        self.log, self.what = log, what
        with log.open("wb") as errors, (output or Path(os.devnull)).open("wb") as out:
            try:
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out if output else errors, stderr=errors, env=env)
            except OSError as error:
                raise EngineError(f"{what}: {error}") from None

    def wait(self) -> None:
        """One that fails is named with the log's end."""
        try:
            _, status, _ = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            self.kill()
            raise
        if status:
            raise EngineError(f"{self.what}: {how_it_ended(status)}; the end of {self.log}:\n"
                              f"{last_lines(self.log.read_text(errors='replace'), LINES_OF_LOG)}")

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()


def run(command: list[str], log: Path, what: str, output: Path | None = None, env: dict[str, str] | None = None) -> None:
    Program(command, log, what, output, env).wait()


def check_gpu(binary: Path) -> None:
    try:
        gpu_memory.used_and_total_of_first()
    except (OSError, ValueError, IndexError, subprocess.CalledProcessError) as error:
        raise EngineError(f"no GPU: nvidia-smi does not say what memory one has ({error})") from None
    try:
        about = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise EngineError(f"no dsv4: {binary} --version: {error}") from None
    if not re.search(r"\bbackends\b[^,]*\bcuda\b", about):
        raise EngineError(f"{binary} is without the CUDA backend: {about}")
    print(about)


def model_path(arguments: argparse.Namespace, ending: str = "") -> Path:
    """The checkpoint that is asked for, or the synthetic one's place. Makes the folder of the comparison."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    layers = f"-{arguments.layers}-layers" if arguments.layers else ""
    return arguments.model or (arguments.checkpoints or arguments.folder) / f"{arguments.shape}-release{layers}{ending}"


def provide_model(arguments: argparse.Namespace, model: Path, log: Path, finish: Callable[[Path], None] | None = None) -> None:
    """A random checkpoint of the release's format, unless it is there. It gets its name when it is complete, and `finish` is through with it."""
    if model.exists():
        return
    if arguments.model:
        raise EngineError(f"{model}: no such checkpoint")
    say(f"Writing {model}")
    model.parent.mkdir(parents=True, exist_ok=True)
    unfinished = model.with_name(model.name + "-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    run([*map(str, [arguments.binary, "synth", unfinished, "--shape", arguments.shape, "--format", "release", "--layers", arguments.layers])],
        log, "dsv4 synth")
    if finish:
        finish(unfinished)
    unfinished.rename(model)


def say(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)


def end(main: Callable[[], int]) -> int:
    """The exit code of a comparison, also of one that is told to stop."""
    signal.signal(signal.SIGTERM, _stopped)  # Of `timeout`, which says nothing.
    try:
        return main()
    except (EngineError, StoppedError, ValueError) as error:
        say(f"compare: {error}")
        return 1


def _stopped(number: int, _frame) -> None:
    raise StoppedError(f"stopped by signal {number}")
