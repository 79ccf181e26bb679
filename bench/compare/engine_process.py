"""A program that holds an engine, and answers requests line by line. One that ends says how: an engine that dies in native code
has no last word of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

LINES_OF_LOG = 30


class EngineError(RuntimeError):
    """Names the engine, how its program ended, and what it wrote last."""


def how_it_ended(status: int) -> str:
    """Text of os.wait4's status: 'exit code 3', 'signal 11 (SIGSEGV)'."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


class EngineProcess:
    """`log` gets what the program writes to standard error. Its first line of output, which is JSON as all, says what it is. Without `wait`
    the program starts beside what its caller does, until wait()."""

    def __init__(self, name: str, command: list[str | Path], log: Path, env: dict[str, str] | None = None, wait: bool = True) -> None:
        self.name, self.log = name, log
        self.waits_for = "its model to load"
        with log.open("wb") as errors:
            # The process takes its copy of the descriptor.
            self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                                            env=env)
        if wait:
            self.wait()

    def wait(self) -> None:
        self.about = self._answer()

    def answer(self, request: dict, what: str) -> dict:
        """`what`: named if it does not come."""
        self.waits_for = what
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        return self._answer()

    def close(self) -> str:
        """Ends it. What there is to say, if it did not end well: its answers were given before."""
        self.process.stdin.close()
        _, status, _ = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.process.stdout.close()
        return f"{self.name}: {how_it_ended(status)} behind its last answer{self._end_of_log()}" if status else ""

    def pause(self) -> None:
        """It keeps its memory and leaves the cores."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Without a last word, whatever it does. One that has ended is left as it is."""
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise self._failure()
        try:
            return json.loads(line)
        except json.JSONDecodeError:
            raise EngineError(f"{self.name}: wrote {line!r} in place of an answer to {self.waits_for}{self._end_of_log()}") from None

    def _failure(self) -> EngineError:
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        return EngineError(f"{self.name}: its program ended with {how_it_ended(status)} when asked for {self.waits_for}; it had "
                            f"taken {usage.ru_maxrss / 1e6:.2f} GB of the host's memory at most{self._end_of_log()}")

    def _end_of_log(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        if not lines:
            return "; it wrote nothing to standard error"
        return f"; the end of {self.log}:\n" + "\n".join("  " + line for line in lines[-LINES_OF_LOG:])
