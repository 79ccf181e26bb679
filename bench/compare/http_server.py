"""A server that holds an engine: started, waited for until it is ready, asked, and ended with all processes that it has."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import machine
from engine_process import EngineError
from rival_install import last_lines

LINES_OF_LOG = 40
SECONDS_TO_END = 15
SECONDS_OF_SILENCE = 60  # Of a wait that says nothing: vLLM compiles for minutes where its caches are empty.


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class HttpServer:
    """`log` gets all that it writes. It is ready when /health says 200."""

    def __init__(self, name: str, command: list[str], port: int, log: Path, env: dict[str, str] | None = None) -> None:
        self.name, self.log, self.url = name, log, f"http://127.0.0.1:{port}"
        self.begin = time.monotonic()
        with log.open("wb") as output:
            try:
                # A group of its own: vLLM's engine is a process of its server.
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True)
            except OSError as error:
                raise EngineError(f"{name}: {error}") from None

    def wait(self, seconds: float) -> float:
        """Seconds since it was started. Now and then it says what the server wrote last."""
        told = time.monotonic()
        while True:
            if self.process.poll() is not None:
                raise EngineError(f"{self.name}: its server ended with {self.process.returncode} before it was ready{self._end_of_log()}")
            taken = time.monotonic() - self.begin
            if taken > seconds:
                raise EngineError(f"{self.name}: its server is not ready after {taken:.0f} s{self._end_of_log()}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                if reply.status == 200:
                    return taken
            if time.monotonic() - told >= SECONDS_OF_SILENCE:
                told = time.monotonic()
                machine.say(f"compare: {self.name} is not ready after {taken:.0f} s: {last_lines(self.log.read_text(errors='replace'), 1)}")
            time.sleep(0.2)

    def ask(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=300) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise EngineError(f"{self.name}: {path}: status {error.code}: {error.read(2000).decode(errors='replace')}") from None
        except (OSError, ValueError) as error:
            raise EngineError(f"{self.name}: {path}: {error}{self._end_of_log()}") from None

    def stop(self) -> None:
        """However it is. It has ended then, with all processes of its group, and with them the GPU's memory that they had."""
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(SECONDS_TO_END)
        self._signal(signal.SIGKILL)
        self.process.wait()
        end = time.monotonic() + SECONDS_TO_END
        while self._has_processes() and time.monotonic() < end:
            time.sleep(0.05)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def _has_processes(self) -> bool:
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # Behind the name, which may have anything in it: the state, the parent and the group.
                state, _, group = path.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self.process.pid and state != "Z":
                    return True
        return False

    def _end_of_log(self) -> str:
        return f"; the end of {self.log}:\n{last_lines(self.log.read_text(errors='replace'), LINES_OF_LOG)}"
