"""Options, files and memory at their limits: each is refused by name, nothing hangs, nothing is lost, and no program aborts."""

import contextlib
import functools
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import threading
import time
import unittest

from attack_testing import SANITIZED, dice, sized

from dsv4_process import BINARY, PATIENCE, TINY, dsv4, free_port
from server_process import Server


class Options(unittest.TestCase):
    def expect_refusal(self, *arguments, wanted, code=2):
        with self.subTest(arguments=arguments):
            process = dsv4(*arguments)
            self.assertEqual(process.returncode, code, process.stderr)
            self.assertIn(wanted, process.stderr)

    def test_serve(self):
        self.expect_refusal("serve", "--api-key", "", wanted="--api-key: got an empty key")
        self.expect_refusal("serve", "--api-key", " ", wanted="--api-key: got an empty key")
        self.expect_refusal("serve", "--timeout-seconds", "1e300", wanted="got 1e300, wanted 0 or more, at most 1000000000")
        self.expect_refusal("serve", "--client-seconds", "nan", wanted="got nan, wanted more than 0")
        self.expect_refusal("serve", "--max-body-mib", "17592186044416", wanted="at most 1073741824")
        self.expect_refusal("serve", "--state-mib", "1", "--port", "0", wanted="--state-mib 1: too little")
        self.expect_refusal("serve", "--unix-socket", "/tmp/" + "s" * 200, wanted="a socket's path has at most 107")


@unittest.skipIf(SANITIZED, "a sanitizer wants terabytes of addresses")
class AddressSpace(unittest.TestCase):
    """So few addresses that a model, a thread's stack or a small string finds none, wherever that is."""

    def sizes(self, name):
        random = dice(name)
        return [16, 24, 32, *(random.randrange(34, 260) for _ in range(sized(14)))]

    @staticmethod
    def limit(mib):
        return lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))

    def expect_no_abort(self, mib, code, stderr):
        self.assertNotIn(code, (-signal.SIGABRT, -signal.SIGSEGV), (mib, stderr))
        if code not in (0, -signal.SIGTERM):
            self.assertRegex(stderr, r"dsv4: \S|error while loading shared libraries|cannot (allocate|apply)", (mib, code))

    def test_commands(self):
        for mib in self.sizes("commands"):
            for arguments in (["run", "-m", str(TINY), "--max-tokens", "2", "--temperature", "0", "hi"], ["inspect", "-m", str(TINY)], ["tokenize", "-m", str(TINY), "hi"]):
                with self.subTest(mib=mib, command=arguments[0]):
                    process = subprocess.run([BINARY, *arguments], capture_output=True, text=True, preexec_fn=self.limit(mib), timeout=PATIENCE, check=False)
                    self.expect_no_abort(mib, process.returncode, process.stderr)

    def test_serve(self):
        for mib in self.sizes("serve"):
            with self.subTest(mib=mib):
                process = subprocess.Popen([BINARY, "serve", "-m", str(TINY), "--port", str(free_port()), "--context", "1024"], stderr=subprocess.PIPE,
                                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, text=True, preexec_fn=self.limit(mib))
                try:
                    try:
                        process.wait(timeout=3)
                    except subprocess.TimeoutExpired:  # It serves.
                        process.send_signal(signal.SIGTERM)
                    start = time.monotonic()
                    stderr = process.communicate(timeout=PATIENCE)[1]
                    self.assertLess(time.monotonic() - start, 60)
                finally:
                    process.kill()
                self.expect_no_abort(mib, process.returncode, stderr)

    def test_a_server_with_little_room_is_no_slower(self):
        """Seconds of the processors for eight requests with eight answers each, with and without a limit."""
        body = {"messages": [{"role": "user", "content": "word " * 1000}], "n": 8, "max_tokens": 20, "ignore_eos": True}

        def seconds(*limit):
            with Server("--context", 4096, "--threads", 2, before=limit[0] if limit else None) as server:
                def ask():
                    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE)
                    with contextlib.suppress(OSError):
                        connection.request("POST", "/v1/chat/completions", json.dumps(body))
                        statuses.append(connection.getresponse().status)
                    connection.close()
                statuses = []
                threads = [threading.Thread(target=ask) for _ in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual(statuses, [200] * 8)
                return sum(map(int, pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

        free, limited = seconds(), seconds(self.limit(400))
        print(f"eight requests take {free:.2f} s of the processors, below a limit of 400 MiB {limited:.2f} s")
        self.assertLess(limited, 3 * free + 1)

    def test_few_descriptors(self):
        for count in range(3, 24):
            with self.subTest(count=count):
                process = subprocess.run([BINARY, "serve", "-m", str(TINY), "--context", "512", "--unix-socket", "/nowhere/socket"],
                                         capture_output=True, text=True, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL,
                                         preexec_fn=lambda count=count: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count)))
                self.assertGreater(process.returncode, 0, process.stderr)

    def test_a_server_that_starts_answers(self):
        for count in range(8, 40, 3):
            limit = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, (count, count))
            with self.subTest(count=count), subprocess.Popen([BINARY, "serve", "-m", str(TINY), "--context", "512", "--port", "0"], stderr=subprocess.PIPE,
                                                             stdin=subprocess.DEVNULL, text=True, preexec_fn=limit) as process:
                lines = []
                for line in process.stderr:
                    lines.append(line)
                    if found := re.search(r" at http://([\d.]+):(\d+)", line):
                        connection = http.client.HTTPConnection(found.group(1), int(found.group(2)), timeout=PATIENCE)
                        connection.request("GET", "/health")
                        self.assertEqual(connection.getresponse().status, 200)
                        connection.close()
                        process.send_signal(signal.SIGTERM)
                self.assertIn(process.wait(PATIENCE), (0, 1, 2, 3), lines)
                if process.returncode:
                    self.assertTrue(lines and lines[-1].strip())

    def test_stacks(self):
        short = 64 << 10
        for limits, code in (((short, short), 1), ((short, resource.RLIM_INFINITY), 0), ((short, 2 << 20), 0)):
            if resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY:
                self.skipTest("stacks are limited here already")
            process = subprocess.run([BINARY, "run", "-m", str(TINY), "--max-tokens", "2", "--temperature", "0", "--thinking-mode", "chat", "hi"], capture_output=True,
                                     text=True, timeout=PATIENCE, check=False, preexec_fn=functools.partial(resource.setrlimit, resource.RLIMIT_STACK, limits))
            self.assertEqual(process.returncode, code, (limits, process.stderr))
            if code:
                self.assertEqual(process.stderr, "dsv4: stack: got a limit of 64 KiB, wanted at least 1024 (ulimit -s)\n")


if __name__ == "__main__":
    unittest.main()
