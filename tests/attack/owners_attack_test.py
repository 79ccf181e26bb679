"""Every cell of docs/serving.md's table of shares: an attacker takes all that it can of one resource, and a client of another address is served."""

import contextlib
import gzip
import http.client
import json
import resource
import socket
import threading
import time
import unittest

from attack_testing import CHAT, MAX_MIB, MEMORY_FACTOR, REQUEST, BeyondCaches, CoreTime, busy, memory, slowest_of

from dsv4_process import PATIENCE, SLOWNESS, wait_until
from server_process import Server

MIB = 2**20
BODY = 23 * MIB  # Nearly --max-body-mib.
ENDLESS = {**REQUEST, "max_tokens": 4000, "ignore_eos": True, "stream": True}


def ask(server, address, body=None, method="POST", path=CHAT, headers=None):
    """(status, body, seconds by CoreTime) of one request from an address of this machine. A body of bytes is sent as it is."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body)
    clock = CoreTime(server.process)
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE, source_address=(address, 0))
    try:
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        return response.status, response.read(), clock.seconds()
    finally:
        connection.close()


def connect(server, address, receive=None):
    connection = socket.socket()
    if receive:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    connection.settimeout(PATIENCE)
    connection.bind((address, 0))
    connection.connect((server.host, server.port))
    return connection


def send(server, address, body, path=CHAT, receive=None):
    connection = connect(server, address, receive)
    data = json.dumps(body).encode()
    connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def first_bytes(connection):
    """The beginning of a reply that has come, which stays to be read; nothing where none has."""
    try:
        return connection.recv(64, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


def is_closed(connection):
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


class Attack:
    """Threads that ask all the while until the context ends."""

    def __init__(self, count, act):
        self.ended = threading.Event()
        self.statuses = {}
        self.threads = [threading.Thread(target=self.run, args=(act, i), daemon=True) for i in range(count)]

    def run(self, act, number):
        turn = 0
        while not self.ended.is_set():
            turn += 1
            with contextlib.suppress(OSError, http.client.HTTPException):
                status = act(number, turn)
                self.statuses[status] = self.statuses.get(status, 0) + 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join(PATIENCE)


def nested_conditions(name):
    schema = {"type": "object", "properties": {f"p{i}_{name}": {"type": "integer"} for i in range(20)}}
    for i in range(20):
        schema = {"if": {"properties": {f"p{i}_{name}": {"const": 1}}, "required": [f"p{i}_{name}"]}, "then": {"required": [f"p{(i + 1) % 20}_{name}"]},
                  "else": schema, "type": "object"}
    return schema


def with_schema(schema):
    return {**REQUEST, "max_tokens": 1, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def ambiguous(name):
    """A grammar with very many readings of any text."""
    rules = (f"{x}: /[a-z ,.{name}]+/ | {x} {x} | /[a-z ]+/ {y}" for x, y in ("ab", "bc", "cd", "da"))
    return {**REQUEST, "temperature": 1.5, "max_tokens": 200, "grammar": "start: (a|b|c|d)+\n" + "\n".join(rules)}


class Owners(unittest.TestCase):
    def expect_served(self, server, seconds, what):
        """For so long a client of another address is served, and the server says that it lives."""
        expected = self.expected
        slowest, health, answers = 0.0, 0.0, 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            status, body, took = ask(server, "127.0.0.3", REQUEST)
            self.assertEqual((status, json.loads(body)["choices"][0]["message"]), (200, expected), what)
            slowest = max(slowest, took)
            for path in ("/health", "/ready", "/metrics"):
                status, _, took = ask(server, "127.0.0.3", method="GET", path=path)
                self.assertEqual(status, 200)
                health = max(health, took)
            answers += 1
            time.sleep(0.05)
        print(f"{what}: {answers} answers, slowest {slowest:.2f} s; /health, /ready, /metrics {health:.3f} s; load {busy():.1f} of the cores", flush=True)
        self.assertLess(slowest, 1.0 * SLOWNESS, what)
        self.assertLess(health, 0.1 * SLOWNESS, what)

    def serve(self, *arguments):
        server = Server("--context", 8192, "--prefix-cache-mib", 16, *arguments)
        self.addCleanup(server.__exit__)
        self.expected = json.loads(ask(server, "127.0.0.3", REQUEST)[1])["choices"][0]["message"]
        return server

    def test_bodies_that_stop_near_their_end(self):
        server = self.serve("--client-seconds", 2)
        text = b'{"prompt":"' + b"ab cd ef" * (BODY // 8 - 4)
        for name, data, more in (("plain", text, ""), ("gzip", gzip.compress(text[:8 * MIB], 1)[:-1], "Content-Encoding: gzip\r\n")):
            held = []
            for _ in range(4):
                connection = connect(server, "127.0.0.2")
                held.append(connection)
                with contextlib.suppress(OSError):  # What is beyond its share is refused.
                    connection.sendall(f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY}\r\n{more}\r\n".encode() + data)
            self.expect_served(server, 2, f"{name} bodies that stop near their end")
            wait_until(lambda held=held: all(is_closed(one) for one in held), "they are closed")

    def test_schemas_that_are_dear(self):
        server = self.serve()
        for name, schema in (("nested conditions", nested_conditions),
                             ("counts of members", lambda k: {"type": "object", "properties": {f"p{i}_{k}": {"type": "integer"} for i in range(60)}, "minProperties": 30, "maxProperties": 31})):
            with Attack(8, lambda w, k, schema=schema: ask(server, "127.0.0.2", with_schema(schema(f"{w}x{k}")))[0]) as attack:
                time.sleep(1)
                self.expect_served(server, 4, name)
            print(f"   the attackers got {attack.statuses}")

    def test_a_schema_that_was_refused_is_refused_at_once(self):
        server = self.serve()
        body = with_schema({"type": "object", "minProperties": 3, "properties": {f"p{i}": {"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(40)}})
        first = ask(server, "127.0.0.3", body)
        self.assertEqual(first[0], 400)
        again = slowest_of(3, lambda: self.assertEqual(ask(server, "127.0.0.3", body)[:2], first[:2]))
        print(f"refused after {first[2]:.2f} s, then in {again:.3f} s")
        self.assertLess(again, max(0.05, first[2] / 5) * SLOWNESS)

    def test_large_bodies(self):
        server = self.serve()
        text = "word and words " * (2 * MIB // 15)
        # Made once: while a thread of this process writes 16 MiB of JSON, the honest client's does not run.
        large = json.dumps({"prompt": text * 8}).encode()
        with Attack(4, lambda *_: ask(server, "127.0.0.2", large, path="/tokenize")[0]):
            time.sleep(1)
            self.expect_served(server, 3, "texts of 16 MiB")
            status, _, seconds = ask(server, "127.0.0.3", {"prompt": text[:400_000]}, path="/tokenize")
            print(f"   a text of 400 KB beside them: {seconds:.2f} s")
            self.assertEqual(status, 200)
            self.assertLess(seconds, 2 * SLOWNESS)

    def test_grammars_with_many_readings(self):
        server = self.serve()
        with Attack(4, lambda w, k: ask(server, "127.0.0.2", {**ambiguous(w), "seed": k})[0]):
            time.sleep(1)
            self.expect_served(server, 4, "masks that are dear")

    def test_masks_that_are_late_change_no_answer(self):
        server = self.serve()
        bodies = [{**ambiguous(w), "seed": w, "max_tokens": 40} for w in range(3)]
        alone = [json.loads(ask(server, "127.0.0.2", body)[1])["choices"][0]["message"]["content"] for body in bodies]
        together = [None] * 3

        def again(i):
            together[i] = json.loads(ask(server, f"127.0.0.{i + 4}", {**bodies[i], "speculation": "off" if i else "auto"})[1])["choices"][0]["message"]["content"]
        threads = [threading.Thread(target=again, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(together, alone)

    def test_more_owners_than_places_that_do_not_read(self):
        server = self.serve("--max-sequences", 4, "--max-waiting", 8)
        readers = [send(server, f"127.0.1.{i + 1}", ENDLESS, receive=4096) for i in range(12)]
        wait_until(lambda: server.metric("dsv4_requests_running") == 4, "all places are taken")
        seconds = slowest_of(3, lambda: self.assertEqual(ask(server, "127.0.0.3", REQUEST)[0], 200), server.process)
        print(f"beside 12 owners that do not read, with 4 places: slowest of 3 answers {seconds:.2f} s")
        self.assertLess(seconds, 4 * SLOWNESS)  # Twelve owners before it, four places, a second each.
        for reader in readers:
            reader.close()

    def test_the_waiting_list(self):
        server = self.serve("--max-sequences", 2, "--max-waiting", 8)
        waiting = [send(server, f"127.0.0.{20 + i % 2}", ENDLESS) for i in range(40)]
        wait_until(lambda: server.metric("dsv4_requests_waiting") >= 4, "requests wait")
        # Two run, and at most half as many again as --max-waiting wait: the others are refused.
        self.assertLessEqual(server.metric("dsv4_requests_waiting"), 12)
        wait_until(lambda: sum(b" 429 " in first_bytes(one) for one in waiting) >= 40 - 2 - 12, "the others are refused")
        seconds = slowest_of(5, lambda: self.assertEqual(ask(server, "127.0.0.3", REQUEST)[0], 200), server.process)
        print(f"beside a waiting list that two owners have filled: slowest of 5 answers {seconds:.2f} s")
        self.assertLess(seconds, 2 * SLOWNESS)  # The turn of an owner's only place is a second.
        for one in waiting:
            one.close()

    def test_priorities(self):
        server = self.serve("--max-sequences", 2)
        with Attack(6, lambda *_: ask(server, "127.0.0.2", {**REQUEST, "max_tokens": 60, "ignore_eos": True, "priority": -2**31})[0]):
            time.sleep(0.5)
            self.expect_served(server, 3, "the most urgent priority there is")

    def test_prompts(self):
        """Many prompts of one address: a short one of another, and one of half a second's reading, come through."""
        server = self.serve("--max-sequences", 64)

        def prompt(name, words):
            return {**REQUEST, "max_tokens": 1, "messages": [{"role": "user", "content": " ".join(f"w{i} {name}" for i in range(words))}]}
        for name, count, words in (("a few prompts of a thousand tokens", 6, 180), ("many shorter ones", 24, 50)):
            with Attack(count, lambda w, k, words=words: ask(server, "127.0.0.2", prompt(f"{w}x{k}", words))[0]):
                time.sleep(1)
                alone = ask(server, "127.0.0.3", REQUEST)[2]
                self.expect_served(server, 3, name)
                status, body, seconds = ask(server, "127.0.0.3", prompt(f"mine {count}", 60))
                self.assertEqual(status, 200)
                read = json.loads(body)["usage"]["prompt_tokens"]
                print(f"   the first {alone:.2f} s; a prompt of {read} tokens beside them: {seconds:.2f} s", flush=True)
                self.assertLess(seconds, 2 * SLOWNESS)

    def test_connections(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < 2000:
            self.skipTest("too few descriptors for as many connections")
        resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        server = self.serve("--client-seconds", 60)
        for name, begin in (("say nothing", b""), ("send a body slowly", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")):
            held = []
            for _ in range(1100):
                with contextlib.suppress(OSError):
                    held.append(connect(server, "127.0.0.2"))
                    held[-1].sendall(begin)
            self.expect_served(server, 1, f"{len(held)} connections that {name}")
            for one in held:
                one.close()

    def test_three_at_once(self):
        for mib, whole in ((24, False), (24, True), (64, False), (64, True)):
            with self.subTest(mib=mib, whole=whole):
                self.three_at_once(mib, whole)

    def three_at_once(self, mib, whole):
        """Bodies of so many MiB, which stop half-way or are whole, schemas, and readers that do not read."""
        server = self.serve("--client-seconds", 5, "--max-body-mib", mib)
        model = memory(server.process)
        body = (mib - 1) * MIB
        text = b'{"prompt":"' + b"ab cd ef" * (body // 8 - 2)
        text += b" " * (body - 2 - len(text)) + b'"}' if whole else b""
        sent = text if whole else text[:body // 2]

        def send_body(*_):
            connection = connect(server, "127.0.0.4")
            with contextlib.suppress(OSError):
                connection.sendall(f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: {body}\r\n\r\n".encode())
                for begin in range(0, body if whole else body // 2, MIB):  # The threads of this process have turns.
                    connection.sendall(sent[begin:begin + MIB])
                while whole and connection.recv(MIB):
                    pass
            time.sleep(0 if whole else 2)
            connection.close()
            return "sent"
        readers = [send(server, "127.0.0.5", ENDLESS, receive=4096) for _ in range(80)]
        with (BeyondCaches(server, model) as beyond, Attack(3, send_body),
              Attack(4, lambda w, k: ask(server, "127.0.0.6", with_schema(nested_conditions(f"{w}x{k}")))[0])):
            time.sleep(1)
            self.expect_served(server, 6, f"bodies of {mib} MiB, {'whole' if whole else 'that stop'}, schemas and readers at once")
        for reader in readers:
            reader.close()
        print(f"   memory at most {beyond.peak:.0f} MiB beyond model and caches")
        self.assertLess(beyond.peak, MAX_MIB * MEMORY_FACTOR)


class Browsers(unittest.TestCase):
    def status(self, server, method="GET", path="/props", body=None, **fields):
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE)
        try:
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name, value)
            data = json.dumps(body).encode() if body is not None else b""
            connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            response = connection.getresponse()
            response.read()
            return response.status, dict(response.headers)
        finally:
            connection.close()

    def test_pages_of_others_may_not_ask(self):
        with Server("--context", 512) as server:
            port = server.port
            for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "[::1].evil.example", "evil.example.",
                         "localhost:80@evil.example", "localhost:evil.example", "a:b@evil.example", "evil%2eexample",
                         "0x7f.0.0.1.evil.example", "::1.evil.example", "évil.example".encode().decode("latin1")):
                for method, path in (("GET", "/"), ("GET", "/props"), ("GET", "/metrics"), ("GET", "/health"), ("POST", CHAT), ("OPTIONS", CHAT), ("GET", "/page/page.js")):
                    for origin in ({}, {"Origin": f"http://{host}"}):
                        if origin and not host.isascii():
                            continue
                        self.assertEqual(self.status(server, method, path, REQUEST if method == "POST" else None, Host=host, **origin)[0], 403, (host, path))
            for host in ("127.0.0.1", f"127.0.0.1:{port}", f"localhost:{port}", "LOCALHOST", "[::1]:80", "192.168.1.5:80", "myhost", "localhost."):
                self.assertEqual(self.status(server, Host=host)[0], 200, host)
                self.assertEqual(self.status(server, "POST", CHAT, REQUEST, Host=host, Origin=f"http://{host}")[0], 200, host)
            for origin in ("http://evil.example", "null", f"ftp://localhost:{port}", f"http://localhost:{port + 1}", "file://", f"http://localhost:{port}.evil.example", "x"):
                self.assertEqual(self.status(server, "POST", CHAT, REQUEST, Host=f"localhost:{port}", Origin=origin)[0], 403, origin)
            self.assertEqual(self.status(server, "POST", CHAT, REQUEST, Sec_Fetch_Site="cross-site", Content_Type="text/plain")[0], 403)

    def test_names_that_are_allowed(self):
        with Server("--context", 512, "--allowed-host", "chat.example", "--cors-origin", "https://page.example") as server:
            self.assertEqual(self.status(server, Host="chat.example:80")[0], 200)
            self.assertEqual(self.status(server, Host="other.example")[0], 403)
            status, headers = self.status(server, "OPTIONS", "/v1/responses/x", Host="chat.example", Origin="https://page.example", Access_Control_Request_Method="DELETE")
            self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (204, "https://page.example"))
            for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS"):
                self.assertIn(method, headers["Access-Control-Allow-Methods"])
        with Server("--context", 512, "--allowed-host", "*") as server:
            self.assertEqual(self.status(server, Host="any.example")[0], 200)
        with Server("--context", 512, "--host", "0.0.0.0", "--api-key", "secret") as server:  # A key keeps pages out.
            self.assertEqual(self.status(server, path="/v1/models", Host="any.example", Authorization="Bearer secret")[0], 200)
        with Server("--context", 512, "--host", "0.0.0.0") as server:
            self.assertEqual(self.status(server, Host="evil.example")[0], 403)


if __name__ == "__main__":
    unittest.main()
