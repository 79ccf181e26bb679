"""Logs and files that a full, closed, unread or vanishing place does not take: nothing ends, hangs or is lost silently for that.

A limit of the size of files (RLIMIT_FSIZE) stands for a full disk: it needs no mount, and can be lifted while a server runs.
"""

import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from attack_testing import CHAT

from dsv4_process import BINARY, PATIENCE, SLOWNESS, TINY, free_port, wait_until
from server_process import Server

ANSWER = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 1}


def limited(num_bytes):
    """Sets the limit in a child."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


class Started(Server):
    """A server whose standard error is given, and so says nothing to us: it is up when it answers."""

    def __init__(self, *arguments, model=TINY, **popen):
        self.port, self.host, self.scheme, self.patience, self.log = free_port(), "127.0.0.1", "http", PATIENCE, []
        self.process = subprocess.Popen([BINARY, "serve", "-m", str(model), "--port", str(self.port), "--context", "2048", *map(str, arguments)],
                                        stdin=subprocess.DEVNULL, **{"stdout": subprocess.DEVNULL, **popen})

        def up():
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended: {self.process.returncode}")
            try:
                return self.request("GET", "/health")[0] == 200
            except OSError:
                return False
        try:
            wait_until(up, "an answer")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def __exit__(self, *_):
        """Ends in order and soon, or it is an error."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=PATIENCE)
        finally:
            self.process.kill()
        self.seconds = time.monotonic() - start
        if code != 0:
            raise AssertionError(f"exit code {code}")


class Logs(unittest.TestCase):
    def serves(self, count, *arguments, path=CHAT, **popen):
        """Answers so many requests, and stops."""
        with Started(*arguments, **popen) as server:
            for _ in range(count):
                if path == CHAT:
                    server.post(CHAT, ANSWER)
                else:
                    self.assertEqual(server.request("GET", path)[0], 200)
        self.assertLess(server.seconds, 20 * SLOWNESS)

    def test_standard_error_is_full(self):
        with open("/dev/full", "w") as full:
            self.serves(3, stderr=full)
            self.serves(20, "-v", stderr=full)

    def test_standard_error_is_closed(self):
        self.serves(3, "-v", preexec_fn=lambda: os.close(2))
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as pipe:
            self.serves(20, "-v", stderr=pipe)

    def test_standard_error_is_not_read(self):
        reader, writer = os.pipe()
        with open(reader), open(writer, "w") as pipe:
            os.set_blocking(writer, False)
            with self.assertRaises(BlockingIOError):  # Full from the first line on.
                while True:
                    os.write(writer, b"x" * 4096)
            os.set_blocking(writer, True)
            self.serves(40, "-v", stderr=pipe)

    def test_a_log_that_fills_and_has_room_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "log"
            with open(path, "w") as log, Started("-v", stderr=log, preexec_fn=limited(4096)) as server:
                for _ in range(40):
                    server.post(CHAT, ANSWER)
                self.assertLessEqual(path.stat().st_size, 4096)
                resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                server.post(CHAT, ANSWER)
                wait_until(lambda: "lines before this one were lost" in path.read_text(), "a line that says what was lost")

    def test_access_logs(self):
        self.serves(50, "--access-log", "/dev/full", path="/health", stderr=subprocess.DEVNULL)
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as pipe:
            self.serves(50, "--access-log", "-", path="/health", stdout=pipe, stderr=subprocess.DEVNULL)
        reader, writer = os.pipe()
        with open(reader), open(writer, "w") as pipe:  # More than a pipe holds.
            self.serves(1500, "--access-log", "-", path="/health", stdout=pipe, stderr=subprocess.DEVNULL)

    def test_commands_whose_standard_error_takes_nothing(self):
        run = ["run", "-m", str(TINY), "-v", "--max-tokens", "2", "--temperature", "0", "hi"]
        expected = subprocess.run([BINARY, *run], capture_output=True, check=True, timeout=PATIENCE).stdout
        reader, writer = os.pipe()
        os.close(reader)
        with open("/dev/full", "w") as full, open(writer, "w") as closed:
            for stderr in (full, closed):
                process = subprocess.run([BINARY, *run], stdout=subprocess.PIPE, stderr=stderr, timeout=PATIENCE, check=False)
                self.assertEqual((process.returncode, process.stdout), (0, expected))
        reader, writer = os.pipe()
        with open(reader), open(writer, "w") as pipe:
            os.set_blocking(writer, False)
            with self.assertRaises(BlockingIOError):
                while True:
                    os.write(writer, b"x" * 4096)
            process = subprocess.run([BINARY, *run], stdout=subprocess.PIPE, stderr=pipe, timeout=PATIENCE, check=False)
            self.assertEqual((process.returncode, process.stdout), (0, expected))
        with open("/dev/full", "w") as full:
            wrong = subprocess.run([BINARY, "run", "-m", "/nowhere", "hi"], stderr=full, timeout=PATIENCE, check=False)
        self.assertEqual(wrong.returncode, 3)


class Files(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.TemporaryDirectory()
        self.addCleanup(self.root.cleanup)
        self.folder = pathlib.Path(self.root.name)

    def responses(self, server, count):
        return [server.post("/v1/responses", {"input": f"hi {i} " + "word " * 600, "max_output_tokens": 1})["id"] for i in range(count)]

    def found(self, server, ids):
        return [server.request("GET", f"/v1/responses/{name}")[0] for name in ids]

    def test_responses_stay_until_they_can_be_written(self):
        folder = self.folder / "responses"
        log = self.folder / "log"
        with open(log, "w") as stderr, Started("--responses-dir", folder, stderr=stderr) as server:
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
            ids = self.responses(server, 20)
            time.sleep(1.5)  # They were tried, and tried again.
            self.assertEqual(self.found(server, ids), [200] * 20)
            self.assertEqual([path.name for path in folder.iterdir() if path.name.startswith("resp_")], [])
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            wait_until(lambda: len(list(folder.glob("resp_*.json"))) == 20, "all responses written")
            folder.rename(self.folder / "away")  # A disk that goes away, and comes back.
            more = self.responses(server, 5)
            time.sleep(1.5)
            self.assertEqual(self.found(server, more), [200] * 5)
            (self.folder / "away").rename(folder)
            wait_until(lambda: len(list(folder.glob("resp_*.json"))) == 25, "the others written")
        text = log.read_text()
        self.assertEqual(text.count("they stay in memory until they can be written"), 2, text)
        with Started("--responses-dir", folder, stderr=subprocess.DEVNULL) as server:
            self.assertEqual(self.found(server, ids + more), [200] * 25)

    def test_responses_that_cannot_be_written_end_with_the_server(self):
        log = self.folder / "log"
        with open(log, "w") as stderr, Started("--responses-dir", self.folder / "responses", stderr=stderr) as server:
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
            log.write_text("")  # The log has room.
            self.responses(server, 3)
        self.assertLess(server.seconds, 20 * SLOWNESS)

    def test_states_that_cannot_be_written(self):
        log, cache = self.folder / "log", self.folder / "cache"
        with open(log, "w") as stderr, Started("--prefix-cache-dir", cache, stderr=stderr) as server:
            before = server.post(CHAT, {**ANSWER, "max_tokens": 8})
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))
            for number in range(4):
                server.post(CHAT, {**ANSWER, "messages": [{"role": "user", "content": f"{number} " + "word " * 200}]})
            wait_until(lambda: server.metric("dsv4_prefix_disk_dropped_total") >= 1, "a state given up")
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            shutil.rmtree(cache)
            for number in range(4, 8):
                server.post(CHAT, {**ANSWER, "messages": [{"role": "user", "content": f"{number} " + "word " * 200}]})
            after = server.post(CHAT, {**ANSWER, "max_tokens": 8})
            self.assertEqual(before["choices"][0]["message"], after["choices"][0]["message"])
        self.assertLessEqual(log.read_text().count("prefix cache on disk:"), 2, log.read_text())

    def expect_named(self, what, process, *paths):
        """It fails, says where, and leaves nothing that looks whole."""
        self.assertEqual(process.returncode, 1, (what, process.returncode, process.stderr))
        self.assertIn("dsv4: ", process.stderr, what)
        self.assertTrue(any(word in process.stderr for word in ("File too large", "No space left", "Invalid or incomplete", "cannot", "could not")),
                        (what, process.stderr))
        for path in paths:
            self.assertFalse(pathlib.Path(path).exists(), (what, path))

    def test_outputs_that_do_not_fit(self):
        tokens = self.folder / "tokens.json"
        tokens.write_text(json.dumps(list(range(300, 340))))
        text = self.folder / "text"
        text.write_text("The quick brown fox. " * 10)
        model = ["-m", str(TINY)]
        cases = {
            "logits": (["logits", *model, "--tokens", tokens, "--output", self.folder / "o.npy"], ["o.npy"]),
            "dump": (["logits", *model, "--tokens", tokens, "--output", "/dev/null", "--dump", self.folder / "dump"], []),
            "convert": (["convert", TINY, self.folder / "converted", "--experts", "fp8"], ["converted"]),
            "synth": (["synth", self.folder / "made", "--shape", "tiny", "--layers", "2"], ["made"]),
            "experts": (["experts", "profile", *model, "--text", text, "--output", self.folder / "profile.json"], ["profile.json"]),
            "page": (["diagnose", "prompt", *model, "--html", self.folder / "page.html", "hi"], ["page.html"]),
        }
        for what, (arguments, left) in cases.items():
            with self.subTest(what=what):
                process = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, preexec_fn=limited(64), timeout=PATIENCE,
                                         check=False)
                self.expect_named(what, process, *(self.folder / name for name in left))

    def test_standard_output_is_full(self):
        text = self.folder / "text"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 10)
        data = self.folder / "data.jsonl"
        data.write_text(json.dumps({"text": "The quick brown fox jumps over the lazy dog."}) + "\n")
        model = ["-m", str(TINY)]
        for arguments in (["run", *model, "--max-tokens", "2", "--thinking-mode", "chat", "hi"], ["run", *model, "--max-tokens", "2", "--json", "hi"],
                          ["tokenize", *model, "hi"], ["inspect", *model, "--json"], ["inspect", *model], ["man", "run"],
                          ["bench", *model, "--json", "--prefill", "none", "--depth", "0", "--batch", "1", "--repeat", "1"],
                          ["eval", "perplexity", *model, "--data", data, "--json"], ["diagnose", "prompt", *model, "--json", "hi"],
                          ["experts", "profile", *model, "--text", text, "--json", "--output", self.folder / "profile.json"]):
            with self.subTest(arguments=arguments[:2]), open("/dev/full", "w") as full:
                process = subprocess.run([BINARY, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
                self.assertEqual(process.returncode, 1, process.stderr)
                self.assertIn("standard output", process.stderr)


if __name__ == "__main__":
    unittest.main()
