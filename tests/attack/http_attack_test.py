"""Connections and bodies that mean harm: what they take, and whom they keep waiting."""

import json
import pathlib
import re
import socket
import threading
import time
import unittest

from attack_testing import busy, least, slowest_of

from dsv4_process import PATIENCE, SLOWNESS, wait_until
from server_process import Server

CHAT = "/v1/chat/completions"
REQUEST = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "thinking": False,
           "max_tokens": 4}


def connect(server):
    return socket.create_connection((server.host, server.port), timeout=PATIENCE)


def read_status(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            break
        data += piece
    match = re.match(rb"HTTP/1.1 (\d+) ", data)
    return int(match.group(1)) if match else None


def memory(server, name="VmRSS"):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status).group(1)) / 1024


def chunked(path, pieces, head=""):
    """The head of a request with a chunked body, then its chunks."""
    yield f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n{head}\r\n".encode()
    for piece in pieces:
        yield b"%x\r\n%b\r\n" % (len(piece), piece)


class Bodies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--client-seconds", 5, "--max-sequences", 32)
        cls.addClassCleanup(cls.server.__exit__)
        cls.server.post(CHAT, REQUEST)

    def test_bodies_that_do_not_come_take_no_room(self):
        # Four of these once reserved all the room that there is: every honest request got a 503 for half a minute.
        def beside_attackers():
            attackers = []
            for size in ("Transfer-Encoding: chunked", "Content-Length: 25165824") * 8:
                connection = connect(self.server)
                connection.sendall(f"POST /tokenize HTTP/1.1\r\nHost: x\r\n{size}\r\n\r\n1".encode())
                attackers.append(connection)
            seconds = slowest_of(20, lambda: self.server.post(CHAT, REQUEST))
            for connection in attackers:
                connection.close()
            return seconds
        slowest = least(beside_attackers, 1.0 * SLOWNESS)
        print(f"beside 16 bodies that do not come: slowest answer {slowest:.2f} s")
        self.assertLess(slowest, 1.0 * SLOWNESS)

    def test_chunked_clients_at_once_are_all_served(self):
        statuses, lock = [], threading.Lock()
        body = json.dumps(REQUEST).encode()

        def client():
            with connect(self.server) as connection:
                for piece in chunked(CHAT, [body[:50], body[50:], b""]):
                    connection.sendall(piece)
                    time.sleep(0.05)
                status = read_status(connection)
            with lock:
                statuses.append(status)

        threads = [threading.Thread(target=client) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(statuses, [200] * 32)

    def test_a_slow_client_that_moves_is_served(self):
        text = "word " * 3000
        body = json.dumps({"prompt": text}).encode()  # 15 kB at 2 kB/s: longer than --client-seconds.
        with connect(self.server) as connection:
            connection.sendall(f"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode())
            for at in range(0, len(body), 1000):
                connection.sendall(body[at:at + 1000])
                time.sleep(0.5)
            self.assertEqual(read_status(connection), 200)

    def test_large_bodies_delay_nobody(self):
        # Tokens of 7 MiB take seconds; two such clients once held both threads that read requests.
        body = json.dumps({"prompt": "a\n" * (7 << 20)}).encode()
        head = f"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()

        def beside_bodies():
            connections = [connect(self.server) for _ in range(2)]
            for connection in connections:
                connection.sendall(head + body)
            seconds = slowest_of(10, lambda: self.server.post("/tokenize", {"prompt": "honest"}))
            for connection in connections:
                connection.close()
            return seconds
        slowest = least(beside_bodies, 1.0 * SLOWNESS)
        print(f"beside two bodies of 21 MiB: slowest answer {slowest:.2f} s")
        self.assertLess(slowest, 1.0 * SLOWNESS)

    def test_framing_in_doubt_is_refused_and_closes(self):
        smuggled = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        for fields in ("Host: x\r\nTransfer-Encoding: xchunked\r\n", "Host: x\r\nTransfer-Encoding: gzip\r\n",
                       "Host: x\r\nTransfer-Encoding: identity\r\n", "Host: x\r\nTransfer-Encoding: chunked, identity\r\n",
                       "Host: x\r\nTransfer-Encoding: gzip, chunked\r\n", "", "Host: x\r\nHost: y\r\n",
                       "Host: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
                       "Host: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n"):
            with self.subTest(fields=fields):
                reply = self.server.raw(f"POST /tokenize HTTP/1.1\r\n{fields}\r\n{smuggled}".encode())
                self.assertEqual(reply.count(b"HTTP/1.1 4") + reply.count(b"HTTP/1.1 2"), 1, reply)
                self.assertTrue(reply.startswith(b"HTTP/1.1 400 "), reply[:100])
                self.assertIn(b"Connection: close", reply)

    def test_requests_that_can_never_be_answered(self):
        for more, field in (({"logit_bias": {str(i): -1e308 for i in range(10)}}, "logit_bias: got 0: -1e+308"),
                            ({"logit_bias": {"5": 1e39}}, "logit_bias")):
            status, _, reply = self.server.request("POST", CHAT, {**REQUEST, **more})
            self.assertEqual(status, 400)
            self.assertIn(field, reply["error"]["message"])
        with Server("--max-waiting", 4) as server:
            status, _, reply = server.request("POST", CHAT, {**REQUEST, "n": 5})
            self.assertEqual((status, reply["error"]["param"]), (400, "n"))

    def test_patterns_have_a_bound(self):
        for pattern in ("." * 60000, "[^ab]" * 12000, "(" * 5000, "".join(f"[^{chr(0x4e00 + i)}]" for i in range(2000))):
            with self.subTest(pattern=pattern[:12]):
                before = memory(self.server)
                pathlib.Path(f"/proc/{self.server.process.pid}/clear_refs").write_text("5")

                def refused(pattern=pattern):
                    status, _, reply = self.server.request("POST", CHAT, {**REQUEST, "response_format": {
                        "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": pattern}}}})
                    self.assertEqual(status, 400, reply)
                seconds = least(lambda: slowest_of(1, refused), 3 * SLOWNESS)
                grown = memory(self.server, "VmHWM") - before
                print(f"pattern {pattern[:6]}... of {len(pattern)}: refused, {seconds:.2f} s, {grown:.0f} MiB")
                self.assertLess(grown, 150 * SLOWNESS)
                self.assertLess(seconds, 3 * SLOWNESS)


class Context(unittest.TestCase):
    def test_what_cannot_fit_is_not_read_into_tokens(self):
        with Server("--context", 4096) as server:
            for path, body in ((CHAT, {"messages": [{"role": "user", "content": "a\n" * (5 << 20)}]}),
                               ("/v1/completions", {"prompt": "a\n" * (5 << 20)}),
                               ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "a\n" * (5 << 20)}]})):
                def refused(path=path, body=body):
                    status, _, reply = server.request("POST", path, body)
                    self.assertEqual(status, 400)
                    self.assertIn("prompt is too long: ", reply["error"]["message"])
                    self.assertIn("maximum context length is 4096 tokens", reply["error"]["message"])
                self.assertLess(least(lambda: slowest_of(1, refused), 2 * SLOWNESS), 2 * SLOWNESS)


class Connections(unittest.TestCase):
    def test_idle_connections_give_way(self):
        with Server("--client-seconds", 60) as server:
            idle = [connect(server) for _ in range(1024)]
            for connection in idle[::2]:
                connection.sendall(b"GET /he")  # A head that never ends waits too.
            for _ in range(50):
                server.post("/tokenize", {"prompt": "honest"})
            for connection in idle:
                connection.close()
        lines = [line for line in server.log if "gave way" in line]
        self.assertLess(len(lines), 5, lines)


class Places(unittest.TestCase):
    def test_slow_readers_with_all_places_leave_one_to_others(self):
        # Answers without an end for clients that never read, more than there are places, from one address. The honest client has another.
        body = json.dumps({**REQUEST, "max_tokens": 6000, "ignore_eos": True, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with Server("--max-sequences", 16, "--max-waiting", 24, "--client-seconds", 8) as server:
            expected = server.post(CHAT, REQUEST)["choices"][0]["message"]
            readers = []
            for _ in range(40):
                reader = socket.socket()
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.bind(("127.0.0.2", 0))
                reader.connect((server.host, server.port))
                reader.sendall(head + body)
                readers.append(reader)
            wait_until(lambda: server.metric("dsv4_requests_running") == 16 and server.metric("dsv4_requests_waiting") > 0, "all places are taken")
            # As long as others wait, which is until readers have been given up twice.
            seconds, busiest = [], 1.0
            while server.metric("dsv4_requests_waiting") > 0:
                seconds.append(slowest_of(1, lambda: self.assertEqual(server.post(CHAT, REQUEST)["choices"][0]["message"], expected)))
                busiest = max(busiest, busy())
            wait_until(lambda: server.metric("dsv4_requests_running") == 0, "readers are given up")
            for reader in readers:
                reader.close()
            print(f"beside 40 readers with all 16 places: {len(seconds)} answers while others waited, slowest {max(seconds):.2f} s")
            self.assertGreater(len(seconds), 3)
            # One may have come while others had the cores; whoever has no place waits for all of the 8 s, each time.
            self.assertLess(sorted(seconds)[-2], 1.0 * SLOWNESS * busiest)


class Keys(unittest.TestCase):
    def test_a_key_is_looked_at_before_the_body(self):
        with Server("--api-key", "secret") as server:
            with connect(server) as connection:
                connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 16777216\r\n\r\n")
                self.assertEqual(read_status(connection), 401)
            body = {"prompt": "x"}
            for scheme in ("Bearer", "bearer", "BEARER"):
                self.assertEqual(server.request("POST", "/tokenize", body, {"Authorization": f"{scheme} secret"})[0], 200)
            for header in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer wrong"}, {"x-api-key": ""}):
                self.assertEqual(server.request("POST", "/tokenize", body, header)[0], 401)


if __name__ == "__main__":
    unittest.main()
