"""Shared states on a storage that is full, read-only or gone: a mount of a few MiB. Answers stay, the log has one line, no state is torn. Wants root for the mount."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from dsv4_process import PATIENCE, dsv4, wait_until
from server_process import Server

CHAT = "/v1/chat/completions"


def question(number, facts=16):
    text = " ".join(f"Fact {number}.{i}: the {i}th house is painted blue." for i in range(facts))
    return [{"role": "system", "content": text}, {"role": "user", "content": "What is the capital of France?"}]


def ask(server, messages):
    reply = server.post(CHAT, {"messages": messages, "temperature": 0, "thinking": False, "max_tokens": 12})
    return reply["choices"][0]["message"]["content"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]


class Logged(Server):
    """A server whose log can be read while it runs."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            self.log.append(line)

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=PATIENCE)
        self.reader.join()
        super().__exit__()

    def complaints(self):
        return [line for line in list(self.log) if "prefix cache on disk:" in line and "WARN" in line.upper()]


class SharedDisks(unittest.TestCase):
    PROMPTS = 14

    @classmethod
    def setUpClass(cls):
        with Server("--context", 4096, "--prefix-cache-mib", 0) as alone:
            cls.expected = [ask(alone, question(number))[0] for number in range(cls.PROMPTS)]

    def setUp(self):
        self.mounted = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.cache = self.mounted / "cache"

    def mount(self, *options):
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "dsv4-test", str(self.mounted)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.skipTest(f"nothing can be mounted here: {done.stderr.strip()}")
        self.addCleanup(self.unmount)

    def remount(self, option):
        subprocess.run(["mount", "-o", f"remount,{option}", str(self.mounted)], check=True)

    def unmount(self):
        """As a storage that goes away: files that are open stay so."""
        if os.path.ismount(self.mounted):
            subprocess.run(["umount", "--lazy", str(self.mounted)], check=True)

    def serve(self):
        return Logged("--prefix-cache-dir", self.cache, "--max-sequences", 4, "--context", 4096)

    def check(self, server, numbers):
        """The answers of these questions; how many tokens came from kept states."""
        cached = 0
        for number in numbers:
            answer, tokens = ask(server, question(number))
            self.assertEqual(answer, self.expected[number])
            cached += tokens
        return cached

    def dropped(self, server):
        return server.metric("dsv4_prefix_disk_dropped_total")

    def written(self, server):
        return server.metric("dsv4_prefix_disk_written_total")

    def settled(self, server):
        """Until every state was written or given up."""
        def total():
            return self.written(server) + self.dropped(server)
        before = None
        while before != (before := total()):
            time.sleep(0.5)

    def whole(self):
        """What is on the storage are whole states, which a server that starts finds and uses."""
        names = [path.name for path in (self.cache / "states").iterdir()]
        self.assertTrue(all(name.endswith(".state") for name in names), names)
        with self.serve() as fresh:
            cached = self.check(fresh, range(self.PROMPTS))
            self.assertEqual(fresh.metric("dsv4_prefix_disk_rejected_total"), 0)
        return len(names), cached

    def doctor(self):
        """Verdicts and texts of `dsv4 doctor` by subject, where something is missing."""
        done = dsv4("doctor", "--prefix-cache-dir", self.cache, "--json")
        self.assertEqual(done.returncode, 1, done.stdout)
        return {each["subject"]: (each["verdict"], each["text"]) for each in json.loads(done.stdout)["findings"]}

    def test_a_full_storage(self):
        self.mount("size=4m")
        with self.serve() as one, self.serve() as other:
            self.check(one, range(self.PROMPTS))
            self.check(other, range(self.PROMPTS))
            self.settled(one)
            self.settled(other)
            self.assertGreater(self.dropped(one) + self.dropped(other), 0, "the storage was never full")
            before, said = self.dropped(one), len(one.complaints())
            filler = self.mounted / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:  # Not a byte is left.
                while True:
                    file.write(b"x" * 4096)
            verdict, text = self.doctor()["its rules"]
            self.assertEqual(verdict, "missing")
            self.assertIn("No space left", text)
            for number in range(4):
                ask(one, question(500 + number))
            self.settled(one)
            self.assertGreaterEqual(self.dropped(one), before + 4)
            self.assertLessEqual(len(one.complaints()), said + 1)  # Some states still found room before: a line for each change.
            self.assertIn("No space left", "".join(one.complaints()))
            filler.unlink()
            self.remount("size=40m")
            written = self.written(one)
            last = question(600)
            ask(one, last)
            wait_until(lambda: self.written(one) > written, "a state written once there is room")
            self.settled(one)
            self.assertGreater(ask(other, last)[1], 100)
        names, cached = self.whole()
        self.assertGreater(cached, 100)
        print(f"full: {names} whole states, {cached} tokens of them used again", file=sys.stderr)

    def test_a_storage_without_room_for_files(self):
        self.mount("size=200m", "nr_inodes=10")
        with self.serve() as server:
            self.check(server, range(self.PROMPTS))
            self.settled(server)
            self.assertGreater(self.dropped(server), 0)
            self.assertEqual(len(server.complaints()), 1, server.complaints())
        self.assertGreater(self.whole()[1], 100)

    def test_a_storage_that_turns_read_only(self):
        self.mount("size=200m")
        with self.serve() as one, self.serve() as other:
            self.check(one, range(6))
            self.settled(one)
            self.remount("ro")
            self.assertGreater(self.check(other, range(6)), 6 * 100)  # What is there is read.
            for server in (one, other):
                self.check(server, range(6, self.PROMPTS))
                wait_until(lambda server=server: self.dropped(server) > 0, "states given up")
                self.assertEqual(len(server.complaints()), 1, server.complaints())
                self.assertIn("Read-only file system", server.complaints()[0])
            self.assertIn("Read-only file system", self.doctor()["its rules"][1])
            with self.assertRaisesRegex(AssertionError, str(self.cache)):  # A start says so, and where.
                self.serve()
            self.remount("rw")
            ask(one, question(700))
            wait_until(lambda: self.written(one) > 0, "a state written")
        self.whole()

    def test_a_storage_that_goes(self):
        self.mount("size=200m")
        with self.serve() as one, self.serve() as other:
            self.check(one, range(6))
            self.settled(one)
            self.unmount()
            for server in (one, other):
                self.check(server, range(self.PROMPTS))
                self.settled(server)
                self.assertGreater(self.dropped(server), 0)
                self.assertEqual(len(server.complaints()), 1, server.complaints())
            self.assertEqual(list(self.mounted.iterdir()), [])  # The place below it was left alone.


if __name__ == "__main__":
    unittest.main()
