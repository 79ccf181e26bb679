"""What the attacks share: an honest client that asks all the while, memory by the kernel's count, seeds and sizes.

DSV4_ATTACK_SEED (1) chooses the cases, DSV4_ATTACK_SIZE how many: 1 is the part of `./dev test`, 10 or more the rest (label `attack-long`).
"""

import json
import math
import os
import pathlib
import random
import re
import socket
import threading
import time
import unittest

from dsv4_process import PATIENCE, SLOWNESS
from server_process import Server

CHAT = "/v1/chat/completions"
REQUEST = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "thinking": False,
           "max_tokens": 4}
SEED = int(os.environ.get("DSV4_ATTACK_SEED", "1"))
SIZE = float(os.environ.get("DSV4_ATTACK_SIZE", "1"))
MAX_SECONDS = 1.0  # Of an honest answer, beside any attack.
# By CoreTime: what others do with the cores does not count. In the part of `./dev test` one answer of a hundred may be late even so, but by no more than
# this: caches and memory are shared too. What shuts a client out takes far longer, or is late all the time.
LATE_IN = math.inf if SIZE > 1 else 100
MAX_LATE_SECONDS = 10 * MAX_SECONDS
MAX_MIB = 256      # Of the server beyond its model and its caches.
# A sanitizer keeps what was freed for a while, and shadows all that is there.
SANITIZED = SLOWNESS > 1
MEMORY_FACTOR = 6 if SANITIZED else 1


def sized(count, most=None):
    """So many cases of a kind, at the size asked for."""
    scaled = max(1, int(count * SIZE))
    return scaled if most is None else min(most, scaled)


def dice(name):
    return random.Random(f"{SEED} {name}")


def chosen(cases, count, name):
    """All cases, or a seeded choice of them, in their order."""
    cases = list(cases)
    if count >= len(cases):
        return cases
    return [cases[i] for i in sorted(dice(name).sample(range(len(cases)), count))]


def memory(process, name="VmRSS"):
    """MiB that a process has."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status).group(1)) / 1024


class BeyondCaches(threading.Thread):
    """The most MiB that a server has beyond its model and caches until the context ends. Caches come and go, so each fifth of a second has its own peak."""

    def __init__(self, server, model_mib):
        super().__init__(daemon=True)
        self.server, self.model_mib, self.peak, self.ended = server, model_mib, 0.0, threading.Event()

    def caches(self):
        return sum(map(self.server.metric, ("dsv4_prefix_cache_bytes", "dsv4_state_bytes"))) / 2**20

    def run(self):
        before = self.caches()
        while not self.ended.is_set():
            pathlib.Path(f"/proc/{self.server.process.pid}/clear_refs").write_text("5")
            self.ended.wait(0.2)
            peak = memory(self.server.process, "VmHWM")
            after = self.caches()
            self.peak = max(self.peak, peak - self.model_mib - min(before, after))
            before = after

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()


def least(measure, bound):
    """The least seconds that `measure` returns in up to five tries, which end below `bound`: others may keep the machine busy for a moment, but what is
    slow by itself is slow each time."""
    seconds = math.inf
    for _ in range(5):
        seconds = min(seconds, measure())
        if seconds < bound:
            break
    return seconds


def slowest_of(count, ask, process=None):
    """Seconds of the slowest of so many calls; with a server's process by CoreTime."""
    slowest = 0.0
    for _ in range(count):
        start = time.perf_counter()
        clock = CoreTime(process) if process is not None else None
        ask()
        slowest = max(slowest, clock.seconds() if clock is not None else time.perf_counter() - start)
    return slowest


def busy():
    """By how much more work there is than cores: then seconds say little about the server."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


CORES = os.cpu_count() or 1


class CoreTime:
    """Seconds, without those in which a server's threads, and those of this process, waited for a core that others had. Threads that work are scaled to
    the cores that they would have alone; threads that sleep or wait for each other count in full."""

    def __init__(self, process):
        self.folders = [pathlib.Path(f"/proc/{pid}/task") for pid in (process.pid, os.getpid())]
        self.began, self.start = self.read(), time.perf_counter()

    def read(self):
        threads = {}
        for folder in self.folders:
            for thread in folder.iterdir():
                try:
                    ran, waited, _ = (thread / "schedstat").read_text().split()
                    threads[thread.name] = (int(ran) / 1e9, int(waited) / 1e9)
                except OSError:  # It has ended.
                    continue
        return threads

    def seconds(self):
        took, threads = time.perf_counter() - self.start, self.read()
        ran, waited = (sum(now[i] - self.began.get(name, (0, 0))[i] for name, now in threads.items()) for i in (0, 1))
        awake = min(took, ran + waited)
        if awake <= 0:  # The kernel does not count it.
            return took / busy()
        return took - awake + ran / min(CORES, max(1.0, (ran + waited) / awake))


class HonestClient(threading.Thread):
    """Asks all the while; every answer must be right and come soon."""

    def __init__(self, server, headers=None):
        super().__init__(daemon=True)
        self.server, self.headers = server, headers
        self.expected = self.ask()
        self.ended = threading.Event()
        self.problems, self.answers, self.late, self.slowest, self.slowest_at = [], 0, 0, 0.0, None
        self.doing = None  # What the attacker does just now.

    def ask(self):
        return self.server.post(CHAT, REQUEST, self.headers)["choices"][0]["message"]["content"]

    def run(self):
        while not self.ended.is_set():
            clock = CoreTime(self.server.process)
            try:
                text = self.ask()
            except Exception as error:  # Whatever it is, the test reports it.
                if not self.ended.is_set():
                    self.problems.append(f"{self.doing}: {error!r}")
                text = None
            seconds = clock.seconds()
            if text is not None and text != self.expected:
                self.problems.append(f"{self.doing}: {text!r}")
            self.answers += 1
            self.late += seconds > MAX_SECONDS * SLOWNESS
            if seconds > self.slowest:
                self.slowest, self.slowest_at = seconds, self.doing
            time.sleep(0.02)


class UnderAttack(unittest.TestCase):
    """One server for all tests of a class, and an honest client beside them. What the class promises in the end: every honest answer was
    right and came within MAX_SECONDS, the server needed at most MAX_MIB beyond its model and caches, and it ends with exit code 0."""

    arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-sequences", 64, "--context", 4096, "--client-seconds", 5, "--prefix-cache-mib", 16, *cls.arguments)
        try:
            for _ in range(3):
                cls.server.post(CHAT, REQUEST)
            cls.model_mib = memory(cls.server.process)
            pathlib.Path(f"/proc/{cls.server.process.pid}/clear_refs").write_text("5")  # The peak is counted anew.
            cls.honest = HonestClient(cls.server)
        except BaseException:
            cls.server.__exit__()
            raise
        cls.honest.start()

    def setUp(self):
        type(self).honest.doing = self._testMethodName

    def tearDown(self):
        self.assertIsNone(self.server.process.poll(), "the server ended")
        # Right after each attack it answers.
        self.assertEqual(self.honest.ask(), self.honest.expected)
        print(f"{self._testMethodName}: peak {memory(self.server.process, 'VmHWM') - self.model_mib:.0f} MiB beyond the model")

    @classmethod
    def tearDownClass(cls):
        honest = cls.honest
        honest.ended.set()
        honest.join(PATIENCE)
        caches = (cls.server.metric("dsv4_prefix_cache_bytes")) / 2**20
        peak = memory(cls.server.process, "VmHWM") - cls.model_mib - caches
        cls.server.__exit__()
        print(f"{cls.__name__}: {honest.answers} honest answers, slowest {honest.slowest:.2f} s ({honest.slowest_at}), {honest.late} late, load "
              f"{busy():.1f} of the cores; memory at most {peak:.0f} MiB beyond model and caches")
        assert honest.problems == [], honest.problems[:5]
        assert cls.server.process.returncode == 0, cls.server.process.returncode
        assert honest.late <= honest.answers / LATE_IN, f"{honest.late} late of {honest.answers}: {honest.slowest:.2f} s at {honest.slowest_at}"
        assert honest.slowest < MAX_LATE_SECONDS * SLOWNESS, f"{honest.slowest:.2f} s at {honest.slowest_at}"
        assert peak < MAX_MIB * MEMORY_FACTOR, f"{peak:.0f} MiB"

    def connect(self):
        return socket.create_connection((self.server.host, self.server.port), timeout=PATIENCE)


def statuses(reply):
    """Of all the replies in the bytes of a connection."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", reply)]


def post(path, body, more=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n{more}\r\n".encode() + data
