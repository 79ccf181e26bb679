"""A server whose memory ends: requests end with 503, the server does not, and with memory again every answer is right."""

import concurrent.futures
import contextlib
import http.client
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import time
import unittest

from attack_testing import CHAT, REQUEST, SANITIZED, SIZE, dice, sized

from dsv4_process import BINARY, PATIENCE, TINY, dsv4, wait_until
from server_process import Server


def limit_address_space(process, more_mib):
    """So much more address space than the process has now; None: no limit."""
    size = resource.RLIM_INFINITY
    if more_mib is not None:
        with open(f"/proc/{process.pid}/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize() + int(more_mib * 2**20)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


def open_descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


# A sanitizer takes terabytes of addresses at its start, and ends the process where an allocation fails.
@unittest.skipIf(SANITIZED, "a limit of the address space means nothing to a sanitizer")
class Memory(unittest.TestCase):
    def test_no_allocation_that_fails_ends_the_server(self):
        chance = dice("memory")
        counts = {}
        with Server("--max-sequences", 64, "--context", 4096, "--prefix-cache-mib", 32, "--max-waiting", 1000) as server:
            expected = server.post(CHAT, REQUEST)

            def ask(i):
                body = {**REQUEST, "temperature": 1, "seed": i, "n": 4, "max_tokens": 20, "ignore_eos": True,
                        "messages": [{"role": "user", "content": f"{i} " + "word " * chance.randrange(1, 600)}]}
                if i % 4 == 0:
                    body = {"prompt": "x y " * (256 << 10)}  # A body of 1 MiB.
                try:
                    status = server.request("POST", "/tokenize" if i % 4 == 0 else CHAT, body)[0]
                except (OSError, ValueError, http.client.HTTPException):
                    status = 0  # No memory to say so: the connection is closed.
                counts[status] = counts.get(status, 0) + 1
            for more in (0, 0.1, 0.5, 1, 2, 4, 8, 16, 32, 64)[:: 1 if SIZE > 1 else 3]:
                limit_address_space(server.process, more)
                with concurrent.futures.ThreadPoolExecutor(24) as pool:
                    list(pool.map(ask, range(sized(20, 200))))
                self.assertIsNone(server.process.poll(), f"the server ended with {more} MiB more{server.last_words()}")
                limit_address_space(server.process, None)
                wait_until(lambda: server.metric("dsv4_requests_running") == 0, "what ran has ended")
                again = server.post(CHAT, REQUEST)
                self.assertEqual(again["choices"][0]["message"], expected["choices"][0]["message"])
            print(f"a server without memory: replies by status {dict(sorted(counts.items()))} (0: closed), alive, answers right afterwards")
            self.assertGreater(counts.get(503, 0) + counts.get(0, 0), 0, "memory never ran out, so nothing was tested")
            self.assertEqual(set(counts) - {0, 200, 400, 429, 503}, set())
        self.assertEqual(server.process.returncode, 0)

    def test_no_thread_registers_a_destructor(self):
        """The C library ends the process where there is no memory for it: base/per_thread.h takes its place."""
        self.assertNotIn(b"__cxa_thread_atexit", pathlib.Path(BINARY).read_bytes())

    def test_run_says_that_memory_ran_out(self):
        for mib in (30, 60, 90, 200):
            def limited(mib=mib):
                resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))
            process = subprocess.run([BINARY, "run", "-m", TINY, "Hi", "--max-tokens", "4", "--threads", "1"], capture_output=True, text=True,
                                     preexec_fn=limited, timeout=PATIENCE, check=False)
            self.assertIn(process.returncode, (0, 1, 127), f"{mib} MiB: {process.stderr}")  # 127: the linker.
            if process.returncode:
                self.assertTrue(process.stderr.strip(), f"{mib} MiB")


@unittest.skipIf(SANITIZED, "a sanitizer has its own allocator")
class AnyAllocation(unittest.TestCase):
    """Of all threads, whatever they are at: accepting, reading, rendering, sampling, writing, counting, destroying."""

    def test_one_of_many_fails(self):
        paths = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions", "/tokenize", "/api/chat", "/metrics", "/openapi.json", "/v1/models", "/")
        for seed in range(sized(5, 40)):
            every = (25, 100, 300, 1000, 3000)[seed % 5]
            counts = {}
            folder = self.enterContext(tempfile.TemporaryDirectory())
            # More threads: what they do of their own accord may fail too.
            threads = ("--prefix-cache-dir", f"{folder}/states", "--responses-dir", f"{folder}/responses", "--batches-dir", f"{folder}/batches",
                       "--otlp-endpoint", "http://127.0.0.1:9", "--verify", 3) if seed % 2 else ()
            with Server("--max-sequences", 16, "--context", 2048, "--prefix-cache-mib", 32, *threads,
                        environment={"LD_PRELOAD": os.environ["DSV4_FAIL_MALLOC"], "DSV4_FAIL_EVERY": str(every), "DSV4_FAIL_SEED": str(seed)}) as server:
                expected = server.post(CHAT, REQUEST)
                wait_until(lambda server=server: server.metric("dsv4_requests_running") == 0, "it is idle")
                # The exporter of traces has a pair of sockets from its first transfer on, which a busy machine may still have in front of it.
                descriptors = open_descriptors(server.process) + (2 if threads else 0)
                server.process.send_signal(signal.SIGUSR2)

                def ask(i, server=server, seed=seed, counts=counts):
                    chance = dice(f"allocation {seed} {i}")
                    path = chance.choice(paths)
                    body = {"max_tokens": 8, "stream": chance.random() < 0.5, "temperature": 1, "seed": i}
                    if path == "/v1/responses":
                        body = {"input": "Hi", "max_output_tokens": 8, "stream": body["stream"]}
                    elif path in ("/v1/completions", "/tokenize"):
                        body = {"prompt": "The cat " * chance.randrange(1, 500), "max_tokens": 4}
                    else:
                        body["messages"] = [{"role": "user", "content": "word " * chance.randrange(1, 60)}]
                    if path == CHAT and chance.random() < 0.5:
                        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"a": {"type": "integer"}}}}}
                    try:
                        status = server.request("GET" if path in paths[6:] else "POST", path, None if path in paths[6:] else body)[0]
                    except TimeoutError:
                        status = "silent"  # A connection that is neither served nor closed.
                    except (OSError, ValueError, http.client.HTTPException):
                        status = 0  # No memory to say so, or a stream that ended.
                    counts[status] = counts.get(status, 0) + 1
                with concurrent.futures.ThreadPoolExecutor(12) as pool:
                    list(pool.map(ask, range(sized(60, 300))))
                self.assertIsNone(server.process.poll(), f"the server ended: seed {seed}, one of {every}, replies {counts}{server.last_words()}")
                self.assertNotIn("silent", counts, f"seed {seed}, one of {every}")
                server.process.send_signal(signal.SIGUSR2)
                wait_until(lambda server=server: server.metric("dsv4_requests_running") == 0, "what ran has ended")
                self.assertEqual(server.post(CHAT, REQUEST)["choices"][0]["message"], expected["choices"][0]["message"])
                wait_until(lambda server=server, most=descriptors: open_descriptors(server.process) <= most, "no connection is left behind")
            self.assertEqual(server.process.returncode, 0, "".join(server.log[-5:]))
            print(f"one allocation of {every} fails: replies by status {dict(sorted(counts.items(), key=str))} (0: broken off), alive, answers right afterwards")


class Stop(unittest.TestCase):
    def test_stops_beside_answers(self):
        # The engine's thread may be the last owner of what a connection waited with: AddressSanitizer sees it where that is freed too early.
        chance = dice("stop")
        for i in range(sized(6, 40)):
            with (Server("--max-sequences", 8, "--context", 1024, "--drain-seconds", "0.05") as server,
                  concurrent.futures.ThreadPoolExecutor(8) as pool):
                def ask(_, server=server, kind=i):
                    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                        server.request("POST", CHAT, {**REQUEST, "max_tokens": 300, "ignore_eos": True, "stream": kind % 2 == 0})
                asked = [pool.submit(ask, j) for j in range(8)]
                time.sleep(chance.uniform(0, 0.4))
                server.process.terminate()
                server.process.wait(PATIENCE)
                for one in asked:
                    one.result()
            self.assertEqual(server.process.returncode, 0, "".join(server.log))


class Disk(unittest.TestCase):
    def test_outputs_on_a_full_disk(self):
        self.assertEqual(dsv4("logits", "-m", TINY, "--tokens", "/dev/null", "--output", "/dev/full").returncode, 3)


if __name__ == "__main__":
    unittest.main()
