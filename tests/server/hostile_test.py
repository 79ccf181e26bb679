"""Clients that mean harm, or are broken: each gets the right status, memory stays bounded, and an honest client beside them notices
nothing."""

import contextlib
import json
import pathlib
import random
import re
import socket
import threading
import time
import unittest

from dsv4_process import PATIENCE, SLOWNESS, wait_until
from server_process import Server

CHAT = "/v1/chat/completions"
REQUEST = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "thinking": False}
CLIENT_SECONDS = 4  # Long enough for an honest client that a busy machine keeps waiting.
BODY_MIB = 4


def post_head(length=None, path=CHAT, more=""):
    size = "" if length is None else f"Content-Length: {length}\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{size}{more}\r\n".encode()


class Witness(threading.Thread):
    """An honest client that asks all the while."""

    def __init__(self, server, expected):
        super().__init__()
        self.server, self.expected = server, expected
        self.ended = threading.Event()
        self.problems, self.answers, self.slowest = [], 0, 0.0

    def run(self):
        while self.answers == 0 or not self.ended.is_set():
            start = time.perf_counter()
            try:
                text = self.server.post(CHAT, REQUEST)["choices"][0]["message"]["content"]
            except Exception as error:  # Whatever it is, the test reports it.
                self.problems.append(repr(error))
                return
            if text != self.expected:
                self.problems.append(text)
            self.answers += 1
            self.slowest = max(self.slowest, time.perf_counter() - start)
            time.sleep(0.02)


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-body-mib", BODY_MIB, "--client-seconds", CLIENT_SECONDS, "--max-sequences", 32, "--context", 4096)
        cls.expected = cls.server.post(CHAT, REQUEST)["choices"][0]["message"]["content"]

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def setUp(self):
        self.witness = Witness(self.server, self.expected)
        pathlib.Path(f"/proc/{self.server.process.pid}/clear_refs").write_text("5")  # The peak is counted anew.
        self.before = self.memory("VmRSS")
        self.witness.start()

    def tearDown(self):
        self.witness.ended.set()
        self.witness.join()
        self.assertEqual(self.witness.problems, [])
        self.assertGreater(self.witness.answers, 0)
        self.assertLess(self.witness.slowest, PATIENCE / 2)
        self.assertIsNone(self.server.process.poll())

    def memory(self, name):
        """MiB, of which the model's file may be 20 that come and go."""
        status = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+) kB", status).group(1)) / 1024

    def assert_grew_less_than(self, mebibytes):
        grown = self.memory("VmHWM") - self.before
        print(f"{self._testMethodName}: memory grew by {grown:.0f} MiB at most")
        # AddressSanitizer keeps 256 MiB of what was freed, and shadows it.
        self.assertLess(grown, mebibytes if SLOWNESS == 1 else mebibytes + 400)

    def connect(self):
        return socket.create_connection((self.server.host, self.server.port), timeout=PATIENCE)

    def status_of(self, data):
        reply = self.server.raw(data)
        match = re.match(rb"HTTP/1.1 (\d+) ", reply)
        self.assertIsNotNone(match, reply[:200])
        json.loads(reply.split(b"\r\n\r\n", 1)[1])  # Every refusal is JSON.
        return int(match.group(1))

    def wait_until_only_the_witness_runs(self):
        wait_until(lambda: self.server.metric("dsv4_requests_running") <= 1, "only the witness runs")

    def closes(self, connection):
        """Reads what comes, until the server closes the connection."""
        connection.settimeout(PATIENCE)
        try:
            while connection.recv(1 << 20):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True

    def test_a_reader_that_stops(self):
        body = json.dumps({**REQUEST, "n": 16, "max_tokens": 1000, "ignore_eos": True, "temperature": 2, "stream": True, "logprobs": True,
                           "top_logprobs": 20}).encode()
        readers = []
        for _ in range(2):
            slow = socket.socket()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect((self.server.host, self.server.port))
            slow.sendall(post_head(len(body)) + body)
            readers.append(slow)
        # They run until what nobody reads fills the buffers, and for CLIENT_SECONDS more.
        wait_until(lambda: self.server.metric("dsv4_requests_running") > 8, "the answers are being written")
        self.wait_until_only_the_witness_runs()
        for slow in readers:
            self.assertTrue(self.closes(slow))
            slow.close()
        # The states of 32 sequences take 77 MiB at once; what waits of all their answers, were they whole, 25 more on any machine.
        self.assert_grew_less_than(150)

    def test_a_sender_that_dawdles(self):
        # Now and then a byte is not enough: all the while a connection is open it gets one, but for the last, which says nothing.
        begun = (post_head(1000), b"GET /health HTTP/1.1\r\nHost:", post_head(1000) + b"{", b"")
        slow = {data: self.connect() for data in begun}
        for data, connection in slow.items():
            connection.sendall(data)
            connection.setblocking(False)

        def all_closed():
            for data, connection in list(slow.items()):
                try:
                    if connection.recv(4096) == b"":
                        slow.pop(data).close()
                except BlockingIOError:
                    pass
                except ConnectionError:
                    slow.pop(data).close()
            time.sleep(0.2)
            for data, connection in slow.items():
                with contextlib.suppress(ConnectionError, BlockingIOError):
                    connection.sendall(b"x" if data else b"")
            return not slow
        wait_until(all_closed, "dawdlers are sent away")

    def test_a_peer_that_vanished(self):
        # Nothing can be cut here, so: the kernel is told to look (a timer of kind 2 runs), which ends such a connection.
        with self.connect() as connection:
            connection.sendall(b"GET /hea")
            port = connection.getsockname()[1]

            def timers():
                rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
                return [row[5].split(":")[0] for row in rows if row[1].endswith(f":{self.server.port:04X}") and row[2].endswith(f":{port:04X}")]
            wait_until(lambda: timers() == ["02"], "the kernel looks after the connection")

    def test_a_client_that_closes_half_has_left(self):
        before = self.server.metric("dsv4_output_tokens_total")
        body = json.dumps({**REQUEST, "max_tokens": 4000, "ignore_eos": True}).encode()
        with self.connect() as connection:
            connection.sendall(post_head(len(body)) + body)
            wait_until(lambda: self.server.metric("dsv4_output_tokens_total") - before > 200, "it is being answered, and not the witness alone")
            connection.shutdown(socket.SHUT_WR)
            self.wait_until_only_the_witness_runs()
            self.assertTrue(self.closes(connection))
        self.assertLess(self.server.metric("dsv4_output_tokens_total") - before, 3900)

    def test_headers_without_end(self):
        self.assertEqual(self.status_of(b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(10000)) + b"\r\n"), 431)
        self.assertEqual(self.status_of(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n"), 431)
        self.assertEqual(self.status_of(b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"), 431)
        self.assertIn(b" 200 OK", self.server.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + b"y" * 10_000 + b"\r\n\r\n"))
        self.assert_grew_less_than(60)

    def test_bodies_that_are_too_long(self):
        self.assertEqual(self.status_of(post_head(100 << 20)), 413)
        self.assertEqual(self.status_of(post_head(1 << 70)), 400)
        received = b""
        with self.connect() as connection:
            connection.sendall(post_head(more="Transfer-Encoding: chunked\r\n"))
            chunk = b"%x\r\n%s\r\n" % (1 << 16, b"x" * (1 << 16))
            try:
                for _ in range(1600):  # 100 MiB.
                    connection.sendall(chunk)
            except ConnectionError:
                pass
            with contextlib.suppress(ConnectionError):
                received = connection.recv(4096)
        self.assertIn(received[:12], (b"HTTP/1.1 413", b""))  # Or the connection was reset while we went on.
        self.assert_grew_less_than(8 * BODY_MIB)

    def test_many_long_bodies_at_once(self):
        size = (BODY_MIB << 20) - 1000
        connections = [self.connect() for _ in range(60)]
        for connection in connections:  # All say how much will come before any of it does, so that they are there together.
            connection.sendall(post_head(size))
        for connection in connections:
            connection.settimeout(1)
            with contextlib.suppress(TimeoutError, ConnectionError):
                connection.sendall(b" " * (size - 1))
        refused = 0
        for connection in connections:
            try:
                connection.settimeout(0.2)
                refused += connection.recv(100).startswith(b"HTTP/1.1 503")
            except (TimeoutError, ConnectionError):
                pass
            connection.close()
        self.assertGreater(refused, 0)
        self.assert_grew_less_than(16 * BODY_MIB)  # Four at a time, and what a vector needs to grow.
        wait_until(lambda: self.server.request("POST", "/tokenize", {"prompt": "x" * (1 << 20)})[0] == 200, "the room is free again")

    def test_bytes_that_are_no_text(self):
        for body in (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
                     b'{"messages": "\x00"}', b"\x00" * 100, b"\xff" * 100, b'\xef\xbb\xbf', b'{"\xc3": 1}'):
            self.assertEqual(self.server.request("POST", CHAT, body)[0], 400, body)
        self.assertEqual(self.status_of(b"GET /\xc3(\xff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), 404)
        self.assertEqual(self.status_of(b"GET /v1/models/%ff%fe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), 404)
        self.assertIn(self.status_of(b"GET /health HTTP/1.1\r\nHost: \xff\r\nX-Api-Key: \xfe\r\nConnection: close\r\n\r\n"), (200, 400))

    def test_json_that_is_deep(self):
        deep = "[" * 100_000 + "]" * 100_000
        objects = '{"a":' * 100_000 + "1" + "}" * 100_000
        for value in (deep, objects):
            for body in (value, '{"messages": %s}' % value, '{"messages": [{"role": "user", "content": %s}]}' % value,
                         '{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": %s}}]}' % value,
                         '{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema", "json_schema": {"schema": %s}}}' % value,
                         '{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "metadata": %s}' % value):
                self.assertEqual(self.server.request("POST", CHAT, body)[0], 400, body[:60])
        self.assert_grew_less_than(100)

    def test_garbage_behind_a_request(self):
        one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        reply = self.server.raw(one + b"\x00\xff garbage\r\n\r\n")
        self.assertTrue(reply.startswith(b"HTTP/1.1 200"))
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+) ", reply), [b"200", b"400"])
        body = json.dumps({**REQUEST, "max_tokens": 3}).encode()
        reply = self.server.raw(post_head(len(body)) + body + b"}" + one)  # A length that is one short.
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+) ", reply), [b"200", b"400"])

    def test_thousands_of_requests_sent_ahead(self):
        one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        with self.connect() as connection:
            received = []
            reader = threading.Thread(target=lambda: received.extend(iter(lambda: connection.recv(1 << 16), b"")))
            reader.start()
            for _ in range(50):
                connection.sendall(one * 100)
            connection.sendall(one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            reader.join()
        self.assertEqual(b"".join(received).count(b"HTTP/1.1 200 OK"), 5001)
        self.assert_grew_less_than(60)

    def test_two_lengths_are_one_too_many(self):
        body = b'{"prompt": "x"}'
        for more in ("Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n", "Content-Length: 0x0f\r\n"):
            self.assertEqual(self.status_of(post_head(len(body), "/tokenize", more) + body), 400, more)
        for more in ("Transfer-Encoding: chunked\r\n",):
            for chunks in (b"zz\r\nx\r\n0\r\n\r\n", b"ffffffffffffffffff\r\nx", b"-1\r\nx\r\n"):
                self.assertEqual(self.status_of(post_head(None, "/tokenize", more) + chunks), 400, chunks)

    def test_noise(self):
        dice = random.Random(3)
        good = post_head(15, "/tokenize") + b'{"prompt": "x"}'
        for i in range(300):
            data = bytearray(good if i % 2 else dice.randbytes(dice.randrange(1, 3000)))
            for _ in range(dice.randrange(1, 4)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            with self.connect() as connection:
                try:
                    connection.sendall(data)
                    connection.shutdown(socket.SHUT_WR)
                except ConnectionError:
                    continue
                self.assertTrue(self.closes(connection), bytes(data))
        self.assert_grew_less_than(60)


if __name__ == "__main__":
    unittest.main()
