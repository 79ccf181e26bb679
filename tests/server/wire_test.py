"""HTTP as the internet has it: old versions, proxies in front, ids from outside, and the end of a server."""

import json
import re
import signal
import socket
import subprocess
import threading
import time
import unittest

from dsv4_process import BINARY, PATIENCE, TINY, wait_until
from server_process import Server
from server_testing import CHAT, QUESTION, SharedServer

LONG = {"messages": QUESTION, "max_tokens": 400, "ignore_eos": True, "temperature": 0}


def request_bytes(version, path, body, *headers):
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(data)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


class OldVersions(SharedServer):
    def test_a_stream_is_one_for_http_1_0_too(self):
        for path, body in ((CHAT, LONG), ("/v1/completions", {"prompt": "Once", "max_tokens": 400, "ignore_eos": True}),
                           ("/v1/messages", {**LONG, "max_tokens": 400}), ("/v1/responses", {"input": "hi", "max_output_tokens": 400, "ignore_eos": True}),
                           ("/api/chat", {"messages": QUESTION, "options": {"num_predict": 400, "ignore_eos": True}})):
            with self.subTest(path=path), socket.create_connection((self.server.host, self.server.port), timeout=PATIENCE) as connection:
                connection.sendall(request_bytes("1.0", path, {**body, "stream": True}))
                pieces, received = 0, b""
                while piece := connection.recv(65536):
                    pieces += 1
                    received += piece
                head, _, text = received.partition(b"\r\n\r\n")
                self.assertNotIn(b"content-length", head.lower())
                self.assertNotIn(b"transfer-encoding", head.lower())
                self.assertIn(b"x-accel-buffering: no", head.lower())
                self.assertGreaterEqual(pieces, 20)
                self.assertIn(text.splitlines()[0][:1], (b"d", b"e", b"{"))

    def test_what_is_whole_has_its_length(self):
        reply = self.server.raw(request_bytes("1.0", CHAT, {"messages": QUESTION, "max_tokens": 4}))
        self.assertRegex(reply, rb"(?i)content-length: \d+")

    def test_no_100_continue_for_http_1_0(self):
        reply = self.server.raw(request_bytes("1.0", CHAT, {"messages": QUESTION, "max_tokens": 4}, "Expect: 100-continue"))
        self.assertTrue(reply.startswith(b"HTTP/1.1 200"), reply[:60])


class Ids(unittest.TestCase):
    def test_ids_and_addresses_come_from_a_trusted_proxy(self):
        with Server("--access-log", "/dev/stderr", "--trusted-proxy", "127.0.0.0/8", "--trusted-proxy", "10.1.0.0/16", "--context", 2048) as server:
            for given, taken in (("my-id-1", True), ("a" * 129, False), ("two words", False), ("", False)):
                got = server.request("GET", "/v1/models", headers={"x-request-id": given})[1]["x-request-id"]
                self.assertEqual(got == given, taken, given)
            for header in ("203.0.113.9", "198.51.100.1, 203.0.113.9, 10.1.2.3", "203.0.113.9:4711", "[2001:db8::1]:80", "nonsense"):
                server.request("GET", "/v1/models", headers={"x-forwarded-for": header})
        log = "".join(server.log)
        self.assertIn("my-id-1", log)
        clients = re.findall(r"\+0000 (\S+) \"GET", log)
        self.assertEqual(clients[-5:], ["203.0.113.9", "203.0.113.9", "203.0.113.9", "2001:db8::1", "127.0.0.1"])

    def test_without_a_trusted_proxy_the_peer_counts(self):
        with Server("--access-log", "/dev/stderr", "--context", 2048) as server:
            server.request("GET", "/v1/models", headers={"x-forwarded-for": "203.0.113.9"})
        self.assertIn(' 127.0.0.1 "GET', "".join(server.log))


class Addresses(unittest.TestCase):
    def test_an_empty_address_is_refused(self):
        for host in ("", " ", "*", "10.0.0.1/8"):
            done = subprocess.run([BINARY, "serve", "-m", str(TINY), "--port", "0", "--host", host], capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual((done.returncode, "--host" in done.stderr), (2, True), done.stderr)


class Ends(unittest.TestCase):
    def test_a_stream_that_is_cut_says_so_in_every_dialect(self):
        shapes = {CHAT: LONG, "/v1/completions": {"prompt": "Once", "ignore_eos": True}, "/v1/messages": LONG,
                  "/v1/responses": {"input": "hi", "ignore_eos": True}, "/api/chat": {"messages": QUESTION, "options": {"ignore_eos": True}}}
        with Server("--drain-seconds", 1, "--context", 65536) as server:
            replies = {}

            def ask(path, body):
                length = {"max_output_tokens" if path.endswith("responses") else "max_tokens": 60000}
                if path == "/api/chat":
                    body["options"]["num_predict"], length = 60000, {}
                replies[path] = server.raw(request_bytes("1.1", path, {**body, **length, "stream": True}))

            threads = [threading.Thread(target=ask, args=item) for item in shapes.items()]
            for thread in threads:
                thread.start()
            wait_until(lambda: server.metric("dsv4_requests_running") == len(shapes), "all streams")
            server.process.send_signal(signal.SIGTERM)
            for thread in threads:
                thread.join(PATIENCE)
        for path, reply in replies.items():
            with self.subTest(path=path):
                self.assertTrue(reply.endswith(b"0\r\n\r\n"), reply[-200:])
                last = reply[-1500:].decode(errors="replace")
                self.assertIn("the server is stopping", last)
                self.assertNotIn("[DONE]", last)

    def test_a_whole_answer_that_is_cut_is_a_503(self):
        with Server("--drain-seconds", 0.5, "--context", 65536) as server:
            got = []
            thread = threading.Thread(target=lambda: got.append(server.request("POST", CHAT, {**LONG, "max_tokens": 60000})))
            thread.start()
            wait_until(lambda: server.metric("dsv4_requests_running") == 1, "the request")
            server.process.send_signal(signal.SIGTERM)
            thread.join(PATIENCE)
        status, _, reply = got[0]
        self.assertEqual((status, reply["error"]["code"]), (503, "server_stopping"))

    def test_a_lame_duck_answers_and_is_not_ready(self):
        with Server("--lame-duck-seconds", 5, "--context", 2048) as server:
            self.assertEqual(server.request("GET", "/ready")[0], 200)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: server.request("GET", "/ready")[0] == 503, "not ready")
            status, headers, _ = server.request("POST", CHAT, {"messages": QUESTION, "max_tokens": 4})
            self.assertEqual((status, headers["connection"]), (200, "close"))
            begin = time.monotonic()
            server.process.send_signal(signal.SIGTERM)  # Ends that time.
            server.process.wait(PATIENCE)
            self.assertLess(time.monotonic() - begin, 4.5)

    def test_a_pod_is_a_lame_duck_by_itself(self):
        with Server("--context", 2048, environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) as server:
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: server.request("GET", "/ready")[0] == 503, "not ready")
        self.assertEqual(server.process.returncode, 0)  # The server's end in this test sends the second signal.


if __name__ == "__main__":
    unittest.main()
