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
def nginx(port, lines):
    """nginx with these lines inside of `location /`; everything it writes goes to a directory that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        pathlib.Path(folder, "nginx.conf").write_text(
            f"daemon off; worker_processes 1; pid {folder}/pid; error_log stderr;\nevents {{}}\n"
            f"http {{ access_log off;\n{paths}server {{ listen 127.0.0.1:{port}; location / {{\n{lines}\n}} }} }}\n")
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
    body = f'{{"prompt": "Once upon a time", "stream": true, "max_tokens": {tokens}, "ignore_eos": true, "temperature": 0}}'
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


class RollingRestart(unittest.TestCase):
    """Two replicas behind HAProxy are replaced one after the other, under load: no answer that has begun is cut, and none refused."""

    def test_no_answer_is_lost_or_refused(self):
        ports = [free_port(), free_port()]
        options = ("--context", 4096, "--lame-duck-seconds", 2, "--drain-seconds", PATIENCE)

        def replica(index):
            return Server(*options, "--port", ports[index], "--max-sequences", 8)

        replicas = [replica(0), replica(1)]
        port, ended = free_port(), threading.Event()
        lines = block("haproxy").replace("bind :80", f"bind 127.0.0.1:{port}").replace("inter 2s", "inter 200ms").replace("balance hdr(x-session-id)", "balance roundrobin")
        lines = lines.replace("hash-type consistent", "").replace("10.0.0.1:8000", f"127.0.0.1:{ports[0]}").replace("10.0.0.2:8000", f"127.0.0.1:{ports[1]}")
        outcomes, texts = [], set()

        def ask():
            while not ended.is_set():
                try:
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
                    body = '{"prompt": "Once upon a time", "stream": true, "max_tokens": 40, "ignore_eos": true, "temperature": 0}'
                    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                    response = connection.getresponse()
                    text = response.read()
                    whole = response.status == 200 and text.endswith(b"data: [DONE]\n\n")
                    outcomes.append("whole" if whole else f"{response.status}: {text[-100:]}")
                    texts.update(["".join(re.findall(r'"text": ?"((?:[^"\\]|\\.)*)"', text.decode()))] if whole else [])
                    connection.close()
                except (OSError, http.client.HTTPException) as error:
                    outcomes.append(repr(error))

        try:
            with haproxy(lines, port):
                wait_until(lambda: http_status(port) == 200, "the first check of /ready")
                clients = [threading.Thread(target=ask) for _ in range(6)]
                for client in clients:
                    client.start()
                try:
                    for index in range(2):
                        before = len(outcomes)
                        wait_until(lambda before=before: len(outcomes) > before + 12, "answers of both")
                        replicas[index].__exit__()  # SIGTERM, and the end.
                        self.assertEqual(replicas[index].process.returncode, 0)
                        replicas[index] = replica(index)
                        wait_until(lambda index=index: http_status(ports[index]) == 200, "the new one is ready")
                        time.sleep(1)  # HAProxy sees it.
                    before = len(outcomes)
                    wait_until(lambda before=before: len(outcomes) > before + 12, "answers of both")
                finally:
                    ended.set()
                    for client in clients:
                        client.join()
        finally:
            for each in replicas:
                each.__exit__()
        print(f"{len(outcomes)} answers through two restarts", file=sys.stderr)
        self.assertEqual([each for each in outcomes if each != "whole"], [])
        self.assertEqual(len(texts), 1)


def http_status(port):
    """Of /ready; 0 where nothing answers."""
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", "/ready")
        return connection.getresponse().status
    return 0


if __name__ == "__main__":
    if not all(PROGRAMS.values()):
        sys.exit(77)
    unittest.main()
