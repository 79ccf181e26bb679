"""The interactive chat on a pseudo-terminal, for its tests."""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import tempfile
import termios
import time
import unittest

from dsv4_process import BINARY, PATIENCE

QUICK = ("--anyway", "--temperature", "0", "--thinking-mode", "chat", "--max-tokens", "6")


class Terminal:
    """The binary with a pseudo-terminal as standard input, output and error."""

    def __init__(self, *arguments, env=None, columns=80, program=None):
        self.master, slave = pty.openpty()
        self.resize(columns)

        def own_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            program or [BINARY, "run", *(() if "--anyway" in arguments else ("--anyway",)), *arguments], stdin=slave, stdout=slave, stderr=slave, preexec_fn=own_terminal,
            env={**os.environ, "TERM": "xterm", "DSV4_HISTORY": "", **(env or {})})
        os.close(slave)
        self.screen = ""
        self.position = 0  # Everything before it was waited for already.

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def resize(self, columns, rows=24):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self):
        return termios.tcgetattr(self.master)[3] & (termios.ICANON | termios.ECHO)

    def send(self, text):
        os.write(self.master, text.encode())

    def wait_for(self, text, seconds=PATIENCE):
        """Reads until `text` appears after what the last call found; returns what came before it. A blank may be where a line was wrapped."""
        deadline = time.monotonic() + seconds
        pattern = re.compile(r"\s+".join(map(re.escape, text.split(" "))))
        while not (found := pattern.search(self.screen, self.position)):
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"no {text!r} in {self.screen[self.position:]!r}")
            if select.select([self.master], [], [], left)[0]:
                try:
                    self.screen += os.read(self.master, 65536).decode(errors="replace")
                except OSError as error:
                    raise AssertionError(f"terminal closed before {text!r}: {self.screen!r}") from error
        before = self.screen[self.position:found.start()]
        self.position = found.end()
        return before


class TypingTest(unittest.TestCase):
    """Typed text, and the question to the model, read back from the file that /save writes."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def open(self, *arguments, **options):
        terminal = Terminal(*(arguments or QUICK), **options)
        self.addCleanup(terminal.close)
        terminal.wait_for("/help.")
        return terminal

    def ask(self, terminal, keys):
        terminal.send(keys)
        terminal.wait_for(", answer ")

    def messages(self, terminal):
        path = self.folder / "saved.json"
        path.unlink(missing_ok=True)
        terminal.send(f"/save {path}\r")
        terminal.wait_for(" messages written")
        return json.loads(path.read_text())

    def asked(self, terminal):
        return [message["content"] for message in self.messages(terminal) if message["role"] == "user"]

    def leave(self, terminal):
        terminal.send("/exit\r")
        self.assertEqual(terminal.process.wait(timeout=PATIENCE), 0)
