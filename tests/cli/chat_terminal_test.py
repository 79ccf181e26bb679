"""The interactive chat on a real pseudo-terminal: history, dimmed reasoning, and Ctrl-C."""

import os
import pty
import select
import signal
import subprocess
import time
import unittest

from dsv4_process import BINARY, PATIENCE, dsv4

DIM, RESET = "\x1b[2m", "\x1b[0m"


class Terminal:
    """The binary with a pseudo-terminal as standard input, output and error."""

    def __init__(self, *arguments):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([BINARY, "run", *arguments], stdin=slave, stdout=slave, stderr=slave,
                                        start_new_session=True, env={**os.environ, "TERM": "xterm"})
        os.close(slave)
        self.screen = ""
        self.position = 0  # Everything before it was waited for already.

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def send(self, text):
        os.write(self.master, text.encode())

    def wait_for(self, text, seconds=PATIENCE):
        """Reads until `text` appears after what the last call found; returns what came before it."""
        deadline = time.monotonic() + seconds
        while (found := self.screen.find(text, self.position)) < 0:
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"no {text!r} in {self.screen[self.position:]!r}")
            if select.select([self.master], [], [], left)[0]:
                try:
                    self.screen += os.read(self.master, 65536).decode(errors="replace")
                except OSError as error:
                    raise AssertionError(f"terminal closed before {text!r}: {self.screen!r}") from error
        before = self.screen[self.position:found]
        self.position = found + len(text)
        return before


class Chat(unittest.TestCase):
    def open(self, *arguments):
        terminal = Terminal(*arguments)
        self.addCleanup(terminal.close)
        terminal.wait_for("/help.")
        return terminal

    def test_reasoning_is_dimmed_and_the_second_turn_reuses_the_first(self):
        terminal = self.open("--temperature", "0")
        terminal.send("What is the capital of France?\n")
        terminal.wait_for(DIM)
        terminal.wait_for(RESET)
        self.assertIn("Paris", terminal.wait_for("tok/s), answer"))
        terminal.send("What is the capital of Japan?\n")
        self.assertIn("Tokyo", terminal.wait_for(" reused, answer"))
        terminal.send("/exit\n")
        self.assertEqual(terminal.process.wait(timeout=PATIENCE), 0)

    def test_ctrl_c_stops_the_answer_and_keeps_the_chat(self):
        # A loop that never ends by itself: the end of sentence and the rest of the vocabulary cannot win against one token.
        terminal = self.open("--temperature", "0", "--logit-bias", "100=1000", "--max-tokens", "100000")
        terminal.send("Hello\n")
        terminal.wait_for(DIM)
        terminal.wait_for("\N{REPLACEMENT CHARACTER}" * 20)  # What that token is: a piece of a character.
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.wait_for("tok/s), answer")
        terminal.send("/help\n")
        terminal.wait_for("/clear")
        terminal.send("/exit\n")
        self.assertEqual(terminal.process.wait(timeout=PATIENCE), 0)

    def test_commands(self):
        terminal = self.open("--temperature", "0")
        terminal.send("/think\n")
        terminal.wait_for("Reasoning off.")
        terminal.send("/nonsense\n")
        terminal.wait_for("Unknown command")
        terminal.send("What is the capital of Italy?\n")
        self.assertNotIn(DIM, terminal.wait_for("Rome"))
        terminal.wait_for("> ")
        # The end of input. Typed while the terminal changes mode it arrives as a NUL, which libedit takes for a character of the
        # line; so the line is cleared (Ctrl-U) and the end typed again, as a person would.
        deadline = time.monotonic() + PATIENCE
        while terminal.process.poll() is None and time.monotonic() < deadline:
            terminal.send("\x15\x04")
            time.sleep(0.2)
        self.assertEqual(terminal.process.poll(), 0)

    def test_without_a_terminal_every_line_is_a_message(self):
        process = dsv4("run", "--temperature", "0", "--thinking-mode", "chat",
                       stdin="What is the capital of France?\nWhat is the capital of Japan?\n")
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("Paris", process.stdout)
        self.assertIn("Tokyo", process.stdout)


if __name__ == "__main__":
    unittest.main()
