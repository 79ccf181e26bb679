"""A running `dsv4 serve`, and plain requests to it. Python's standard library only."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess

from dsv4_process import BINARY, PATIENCE, TINY, wait_until


class Server:
    """Starts on a free port and waits until it answers; ends with the context."""

    def __init__(self, *arguments, model=TINY, environment=None, before=None):
        port = [] if "--port" in arguments or "--unix-socket" in arguments else ["--port", "0"]
        self.process = subprocess.Popen([BINARY, "serve", "-m", str(model), *port, *map(str, arguments)],
                                        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env={**os.environ, **(environment or {})}, preexec_fn=before)
        self.log = []
        self.patience = PATIENCE  # Of a request.
        for line in self.process.stderr:
            self.log.append(line)
            if match := re.search(r"serves (\S+) at (?:unix:|(https?)://(?:\[([\da-f:]+)\]|([\d.]+)):(\d+))", line):
                self.model, self.scheme, self.host, self.port = match.group(1), match.group(2), match.group(3) or match.group(4), int(match.group(5) or 0)
                break
        else:
            self.process.stderr.close()
            raise AssertionError(f"the server ended: {self.process.wait()}: {''.join(self.log)}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=PATIENCE)
        finally:
            self.process.kill()
            self.log += self.process.stderr.readlines()
            self.process.stderr.close()
        reports = "".join(self.log)
        if "Sanitizer" in reports:
            raise AssertionError(f"a sanitizer's report:\n{reports}")

    @property
    def url(self):
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=self.patience)

    def raw(self, data):
        """Sends bytes and returns all that comes back until the connection ends, by whatever means. A server that has said why may reset
        the rest."""
        received = b""
        with socket.create_connection((self.host, self.port), timeout=PATIENCE) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
            try:
                while chunk := connection.recv(65536):
                    received += chunk
            except ConnectionError:
                pass
        return received

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body) of one request; a dictionary goes as JSON, and JSON comes back as one."""
        connection = self.connect()
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            text = response.read()
            is_json = response.headers.get_content_type() == "application/json" and text
            return response.status, response.headers, json.loads(text) if is_json else text.decode()
        finally:
            connection.close()

    def post(self, path, body, headers=None):
        """The JSON of a request that must succeed."""
        status, _, reply = self.request("POST", path, body, headers)
        if status != 200:
            raise AssertionError(f"{path}: {status}: {reply}")
        return reply

    def stream(self, path, body, headers=None, on_event=None):
        """The events of a streamed reply: (name or None, data). `on_event` is called with their number so far."""
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}),
                               {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            if response.status != 200:
                raise AssertionError(f"{path}: {response.status}: {response.read()}")
            events, name = [], None
            for line in response:
                line = line.decode().rstrip("\n")
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    events.append((name, line[6:] if line == "data: [DONE]" else json.loads(line[6:])))
                    if on_event:
                        on_event(len(events))
                elif line == "":
                    name = None
                elif not line.startswith(":"):
                    raise AssertionError(f"no server-sent event: {line}")
            return events
        finally:
            connection.close()

    def last_words(self):
        """The last lines of a server that has ended."""
        return "" if self.process.poll() is None else ":\n" + "".join(self.process.stderr.readlines()[-20:])

    def with_states(self):
        """Once the weights are hashed, before which no state on disk is read: a start waits a twentieth of its loading, a busy machine needs longer."""
        try:
            wait_until(lambda: self.metric("dsv4_prefix_disk_ready") == 1, "whose the states are is known")
        except BaseException:
            self.__exit__()
            raise
        return self

    def metric(self, name):
        """The sum of a metric over its labels."""
        _, _, text = self.request("GET", "/metrics")
        values = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, flags=re.MULTILINE)
        if not values:
            raise AssertionError(f"no metric {name}")
        return sum(map(float, values))
