"""Wrong input and output of commands, beyond the words of the command line: what it was, and the exit code."""

import pathlib
import subprocess
import tempfile
import unittest

from dsv4_process import BINARY, PATIENCE, dsv4

QUESTION = "What is the capital of France?"


class WrongInput(unittest.TestCase):
    def test_what_is_no_checkpoint_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            gguf = pathlib.Path(folder) / "model.gguf"
            gguf.write_bytes(b"GGUF")
            for path, wanted in ((gguf, "a file, wanted a checkpoint's directory"), (folder, "no checkpoint, which has config.json")):
                for command in (("run", QUESTION), ("inspect",), ("serve", "--port", "0")):
                    process = dsv4(*command, "-m", path)
                    self.assertEqual(process.returncode, 3, process.stderr)
                    self.assertIn(f"model {path}: {wanted}", process.stderr)

    def test_a_full_disk_is_said(self):
        for arguments in (("run", "-q", "--thinking-mode", "chat", "--temperature", "0", QUESTION),
                          ("run", "-q", "--thinking-mode", "chat", "--temperature", "0", QUESTION, "--json"),
                          ("tokenize", "hello"), ("inspect",), ("version",), ("run", "--help")):
            with open("/dev/full", "wb") as full:
                ended = subprocess.run([BINARY, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
            self.assertEqual(ended.returncode, 1, arguments)
            self.assertIn("dsv4: standard output: ", ended.stderr, arguments)

    def test_what_is_no_text_is_named_with_its_place(self):
        with tempfile.TemporaryDirectory() as folder:
            notes = pathlib.Path(folder) / "notes.txt"
            notes.write_bytes(b"latin caf\xe9")
            for prompt in ("Shorten:", "-"):
                with open(notes, "rb") as text:
                    process = subprocess.run([BINARY, "run", prompt], stdin=text, capture_output=True, text=True, timeout=600, check=False)
                self.assertEqual(process.returncode, 3, process.stderr)
                self.assertIn("standard input: not valid UTF-8 at byte 9 (0xE9)", process.stderr)

    def test_a_place_for_profiles_that_cannot_be_written_ends_the_server_at_its_start(self):
        process = dsv4("serve", "--port", "0", "--learn-experts", "on", env={"DSV4_EXPERT_PROFILES": "/proc/profiles"})
        self.assertEqual(process.returncode, 1, process.stderr)
        self.assertIn("serve --learn-experts on: /proc/profiles", process.stderr)

    def test_a_stop_text_is_not_empty(self):
        for command in (("run", QUESTION), ("eval", "generation", "--data", "no.jsonl")):
            with self.subTest(command=command):
                refused = dsv4(*command, "--stop", "x", "--stop", "")
                self.assertEqual(refused.returncode, 2, refused.stderr)
                self.assertIn("--stop: got an empty text, wanted at least one character", refused.stderr)


if __name__ == "__main__":
    unittest.main()
