"""nginx and HAProxy as Debian has them in front of the server, with the lines of docs/proxies.md. Skipped (77) where they are not installed."""

import contextlib
import http.client
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from dsv4_process import PATIENCE, wait_until
from server_process import Server
from server_testing import QUESTION

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "proxies.md"
PROGRAMS = {name: shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin") for name in ("nginx", "haproxy")}


def block(language):
    """The page's block in this language, with its addresses replaced by the caller."""
    return re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL).group(1)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def nginx(port, lines, beside=""):
    """nginx with these lines inside of `location /`, and others beside the server; everything it writes goes to a directory that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        pathlib.Path(folder, "nginx.conf").write_text(
            f"daemon off; worker_processes 1; pid {folder}/pid; error_log stderr;\nevents {{}}\n"
            f"http {{ access_log off;\n{paths}{beside}\nserver {{ listen 127.0.0.1:{port}; location / {{\n{lines}\n}} }} }}\n")
        with started([PROGRAMS["nginx"], "-c", f"{folder}/nginx.conf", "-p", folder, "-e", "stderr"], port):
            yield


@contextlib.contextmanager
def haproxy(configuration, port):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "haproxy.cfg")
        path.write_text(configuration)
        with started([PROGRAMS["haproxy"], "-q", "-db", "-f", str(path)], port):
            yield


@contextlib.contextmanager
def started(command, port):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def answers():
        if process.poll() is not None:
            raise AssertionError(f"{command[0]} ended: {process.stderr.read()}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    try:
        wait_until(answers, command[0])
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stderr.close()


def arrivals(port, tokens=200):
    """When the pieces of a stream arrive, and its head."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = f'{{"model": "tiny", "prompt": "Once upon a time", "stream": true, "max_tokens": {tokens}, "ignore_eos": true, "temperature": 0}}'
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    times, text = [], b""
    while piece := response.read1(65536):
        times.append(time.monotonic())
        text += piece
    connection.close()
    assert response.status == 200, text
    assert text.count(b"data: ") > tokens // 2 and text.endswith(b"data: [DONE]\n\n"), text[-200:]
    return times


class Proxies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--context", 8192, "--trusted-proxy", "127.0.0.1", "--access-log", "/dev/stderr")
        cls.upstream = f"127.0.0.1:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def check(self, port):
        for _ in range(3):  # Of a busy machine pieces come together.
            times = arrivals(port)
            if len(times) >= 20:
                break
        self.assertGreaterEqual(len(times), 20)
        self.assertGreater(times[-1] - times[0], 0.0)

    def test_nginx_as_it_comes(self):
        port = free_port()
        with nginx(port, f"proxy_pass http://{self.upstream};"):
            self.check(port)

    def test_nginx_with_the_lines_of_the_page(self):
        lines = block("nginx").replace("http://127.0.0.1:8000", f"http://{self.upstream}")
        port = free_port()
        with nginx(port, lines):
            self.check(port)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            large = '{"prompt": "' + "x " * (1 << 20) + '", "max_tokens": 1}'
            connection.request("POST", "/v1/completions", large, {"x-request-id": "from-outside"})
            response = connection.getresponse()
            self.assertEqual((response.status, response.headers["x-request-id"]), (400, "from-outside"))  # Too long for the context, not for nginx.
            connection.close()

    def test_haproxy_with_the_lines_of_the_page(self):
        port = free_port()
        lines = block("haproxy").replace("bind :80", f"bind 127.0.0.1:{port}")
        lines = lines.replace("server a 10.0.0.1:8000", f"server a {self.upstream}").replace("server b 10.0.0.2:8000", f"server b {self.upstream}")
        with haproxy(lines, port):
            def serves():
                with contextlib.suppress(AssertionError, OSError, http.client.HTTPException):
                    return len(arrivals(port, 4)) > 0
                return False

            wait_until(serves, "the first check of /ready")
            self.check(port)

    def test_one_that_stops_is_left_without_a_failed_request(self):
        with Server("--context", 4096, "--lame-duck-seconds", 3) as other:
            port = free_port()
            lines = block("haproxy").replace("bind :80", f"bind 127.0.0.1:{port}").replace("inter 2s", "inter 200ms")
            lines = lines.replace("server a 10.0.0.1:8000", f"server a {other.host}:{other.port}").replace("server b 10.0.0.2:8000", f"server b {self.upstream}")
            with haproxy(lines, port):
                statuses = []
                begin, stopped = time.monotonic(), False
                while time.monotonic() - begin < 6:
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
                    connection.request("POST", "/v1/chat/completions", f'{{"messages": [{{"role": "user", "content": "{QUESTION[0]["content"]}"}}], "max_tokens": 2}}')
                    statuses.append(connection.getresponse().status)
                    connection.close()
                    if not stopped and time.monotonic() - begin > 2:
                        other.process.terminate()
                        stopped = True
                    time.sleep(0.02)
            self.assertEqual(set(statuses[5:]), {200})


class TwoReplicas(unittest.TestCase):
    """Two replicas behind a balancer, under load. Replaced one after the other, they lose no answer that has begun and refuse none. One that is killed
    loses what it was answering, and no more."""

    CLIENTS = 6

    def setUp(self):
        self.ports = [free_port(), free_port()]
        self.replicas = [self.replica(0), self.replica(1)]
        self.addCleanup(lambda: [each.__exit__() for each in self.replicas])

    def replica(self, index):
        return Server("--context", 4096, "--lame-duck-seconds", 2, "--drain-seconds", PATIENCE, "--port", self.ports[index], "--max-sequences", 8)

    def haproxy(self, port):
        lines = block("haproxy").replace("bind :80", f"bind 127.0.0.1:{port}").replace("inter 2s", "inter 200ms").replace("balance hdr(x-session-id)", "balance roundrobin")
        lines = lines.replace("hash-type consistent", "").replace("10.0.0.1:8000", f"127.0.0.1:{self.ports[0]}").replace("10.0.0.2:8000", f"127.0.0.1:{self.ports[1]}")
        return haproxy(lines, port)

    def nginx(self, port):
        servers = "".join(f"server 127.0.0.1:{each} max_fails=0;" for each in self.ports)
        return nginx(port, block("nginx").replace("http://127.0.0.1:8000", "http://replicas"), f"upstream replicas {{ {servers} }}")

    def under_load(self, balancer, change):
        """Calls change(wait for answers of both) while clients ask; what became of each request, and when it ended."""
        port, ended, outcomes, texts = free_port(), threading.Event(), [], set()

        def ask():
            while not ended.is_set():
                begun = time.monotonic()
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
                try:
                    body = '{"prompt": "Once upon a time", "stream": true, "max_tokens": 40, "ignore_eos": true, "temperature": 0}'
                    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                    response = connection.getresponse()
                    text = response.read()
                    whole = response.status == 200 and text.endswith(b"data: [DONE]\n\n")
                    outcomes.append((begun, "whole" if whole else f"{response.status}: {text[-100:]}"))
                    texts.update(["".join(re.findall(r'"text": ?"((?:[^"\\]|\\.)*)"', text.decode()))] if whole else [])
                except (OSError, http.client.HTTPException) as error:
                    outcomes.append((begun, repr(error)))
                finally:
                    connection.close()

        def answers_of_both():
            before = len(outcomes)
            wait_until(lambda: len(outcomes) > before + 12, "answers of both")

        with balancer(port):
            wait_until(lambda: http_status(port) == 200, "the first check of /ready")
            clients = [threading.Thread(target=ask) for _ in range(self.CLIENTS)]
            for client in clients:
                client.start()
            try:
                change(answers_of_both)
                answers_of_both()
            finally:
                ended.set()
                for client in clients:
                    client.join()
        self.assertEqual(len(texts), 1)
        return outcomes

    def replace_both(self, answers_of_both):
        for index in range(2):
            answers_of_both()
            self.replicas[index].__exit__()  # SIGTERM, and the end.
            self.assertEqual(self.replicas[index].process.returncode, 0)
            self.replicas[index] = self.replica(index)
            wait_until(lambda index=index: http_status(self.ports[index]) == 200, "the new one is ready")
            time.sleep(1)  # The balancer sees it.

    def test_haproxy_loses_and_refuses_none_through_restarts(self):
        outcomes = self.under_load(self.haproxy, self.replace_both)
        print(f"{len(outcomes)} answers through two restarts, HAProxy", file=sys.stderr)
        self.assertEqual([text for _, text in outcomes if text != "whole"], [])

    def test_nginx_loses_and_refuses_none_through_restarts(self):
        outcomes = self.under_load(self.nginx, self.replace_both)
        print(f"{len(outcomes)} answers through two restarts, nginx", file=sys.stderr)
        self.assertEqual([text for _, text in outcomes if text != "whole"], [])

    def test_a_killed_replica_loses_what_it_was_answering(self):
        for name, balancer in (("HAProxy", self.haproxy), ("nginx", self.nginx)):
            with self.subTest(balancer=name):
                killed = []

                def kill(answers_of_both, killed=killed):
                    answers_of_both()
                    self.replicas[0].process.kill()
                    self.replicas[0].process.wait()
                    killed.append(time.monotonic())
                    answers_of_both()
                outcomes = self.under_load(balancer, kill)
                lost = [(begun, text) for begun, text in outcomes if text != "whole"]
                self.assertLessEqual(len(lost), self.CLIENTS)
                self.assertEqual([text for begun, text in lost if begun > killed[0]], [])
                self.replicas[0].__exit__()
                self.replicas[0] = self.replica(0)


def http_status(port):
    """Status of /ready; 0 where nothing answers."""
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", "/ready")
        return connection.getresponse().status
    return 0


if __name__ == "__main__":
    if not all(PROGRAMS.values()):
        sys.exit(77)
    unittest.main()
