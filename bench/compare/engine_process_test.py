"""A program that ends is named, with how it ended and what it wrote last."""

import os
import sys
import tempfile
import time
import unittest
from pathlib import Path

from engine_process import EngineError, EngineProcess

PROGRAM = """
import json, os, signal, sys, time
print(json.dumps({"version": 7}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "write" in request:
        os.write(2, request["write"].encode())
    if "signal" in request:
        os.kill(os.getpid(), request["signal"])
    if "count" in request:  # Until the end.
        while True:
            os.write(2, b".")
            time.sleep(0.01)
    if "exit" in request:
        sys.exit(request["exit"])
    print(request.get("raw") or json.dumps({"got": request}), flush=True)
sys.exit(int(sys.argv[1]))
"""


class EngineProcesses(unittest.TestCase):
    def start(self, last="0"):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        process = EngineProcess("rival", [sys.executable, "-c", PROGRAM, last], Path(folder.name) / "rival.log")
        self.addCleanup(process.process.stdout.close)
        self.assertEqual(process.about, {"version": 7})
        return process

    def failure(self, request):
        process = self.start()
        with self.assertRaises(EngineError) as raised:
            process.answer(request, "prefill 512")
        process.process.stdin.close()
        process.process.wait()
        return str(raised.exception)

    def test_answers(self):
        process = self.start()
        self.assertEqual(process.answer({"a": 1}, "it"), {"got": {"a": 1}})
        self.assertEqual(process.close(), "")

    def test_a_signal_is_named_and_so_is_the_end_of_the_log(self):
        text = self.failure({"write": "".join(f"line {i}\n" for i in range(99)), "signal": 11})
        self.assertRegex(text, r"rival: its program ended with signal 11 \(SIGSEGV\) when asked for prefill 512; it had taken 0\.\d+ GB")
        self.assertTrue(text.endswith("line 98"), text)
        self.assertNotIn("line 60\n", text)

    def test_an_exit_code_without_a_word(self):
        text = self.failure({"exit": 3})
        self.assertIn("exit code 3 when asked for prefill 512", text)
        self.assertIn("it wrote nothing to standard error", text)

    def test_what_is_no_answer(self):
        self.assertIn("wrote 'CUDA error\\n' in place of an answer to prefill 512", self.failure({"raw": "CUDA error"}))

    def test_an_end_that_is_not_well(self):
        process = self.start(last="5")
        self.assertIn("exit code 5 behind its last answer", process.close())

    def test_a_program_that_starts_beside_what_its_caller_does(self):
        with tempfile.TemporaryDirectory() as folder:
            process = EngineProcess("rival", [sys.executable, "-c", "import os; print(os.environ['NAME'])"], Path(folder) / "log", {"NAME": "7"}, wait=False)
            self.assertFalse(hasattr(process, "about"))
            process.wait()
            self.assertEqual(process.about, 7)
            process.close()

    def test_a_paused_program_stands_still_and_can_be_killed(self):
        process = self.start()
        process.process.stdin.write("{\"count\": 1}\n")
        process.process.stdin.flush()

        def written():
            return process.log.stat().st_size

        self.wait_until(lambda: written() > 3)
        process.pause()
        self.wait_until(lambda: os.waitid(os.P_PID, process.process.pid, os.WSTOPPED | os.WNOHANG))
        before = written()
        time.sleep(0.2)
        self.assertEqual(written(), before)
        process.resume()
        self.wait_until(lambda: written() > before)
        process.pause()
        process.kill()
        self.assertEqual(process.process.returncode, -9)
        process.kill()  # Once more is nothing.

    def wait_until(self, condition):
        deadline = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
