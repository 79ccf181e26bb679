"""A hub on this machine: listings, files with ranges, a second host that it redirects to, and faults by plan."""

import contextlib
import hashlib
import http.server
import json
import random
import socket
import threading
import time


def git_digest(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """Serves `files` (name to bytes) of the repository `name` as commit `commit`. `fault(kind, name, tries)` names what goes wrong with a request,
    or None; kind is "listing" or "file", tries counts the requests for it so far."""

    def __init__(self, files, fault=lambda kind, name, tries: None, token=None, commit="c" * 40, large=4096, name="o/n"):
        self.name = name
        self.files, self.fault, self.token, self.commit, self.large = dict(files), fault, token, commit, large
        self.requests, self.tries, self.lock = [], {}, threading.Lock()
        self.leaked = []  # Tokens that came to the second host.
        self.servers = []
        for second in (False, True):
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler(second))
            server.daemon_threads = True
            server.handle_error = lambda *_: None  # Clients that leave are part of the tests.
            self.servers.append(server)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url, self.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in self.servers)

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def listing(self):
        siblings = []
        for name, data in self.files.items():
            entry = {"rfilename": name, "size": len(data), "blobId": git_digest(data)}
            if len(data) >= self.large:
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 135}
            siblings.append(entry)
        return {"id": "o/n", "sha": self.commit, "siblings": siblings}

    def handler(self, second):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, status, body, **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def hang_up(self):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            def do_GET(self):
                try:
                    self.serve()
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def serve(self):
                path, _, query = self.path.partition("?")
                authorization = self.headers.get("Authorization")
                with hub.lock:
                    hub.requests.append((path, self.headers.get("Range"), authorization))
                if second:
                    if authorization:
                        hub.leaked.append(authorization)
                    return self.file(path.removeprefix("/blob/"), redirected=True)
                if hub.token and authorization != f"Bearer {hub.token}":
                    return self.reply(401, b"Invalid credentials")
                if path.startswith(f"/api/models/{hub.name}/revision/"):
                    return self.listing(query)
                prefix = f"/{hub.name}/resolve/{hub.commit}/"
                if path.startswith(prefix):
                    return self.file(path.removeprefix(prefix), redirected=False)
                return self.reply(404, b"Repository not found")

            def listing(self, query):
                with hub.lock:
                    tries = hub.tries["listing"] = hub.tries.get("listing", 0) + 1
                body = json.dumps(hub.listing()).encode()
                fault = hub.fault("listing", "", tries)
                if fault is None:
                    assert query == "blobs=true"
                    return self.reply(200, body)
                return self.misbehave(fault, body, 0, len(body))

            def file(self, name, redirected):
                data = hub.files.get(name)
                if data is None:
                    return self.reply(404, b"Entry not found")
                if not redirected and len(data) >= hub.large:
                    return self.reply(302, b"", Location=f"{hub.storage}/blob/{name}")
                with hub.lock:
                    tries = hub.tries[name] = hub.tries.get(name, 0) + 1
                start = 0
                if given := self.headers.get("Range"):
                    start = int(given.removeprefix("bytes=").removesuffix("-"))
                fault = hub.fault("file", name, tries)
                if fault is not None:
                    return self.misbehave(fault, data, start, len(data))
                if given:
                    return self.reply(206, data[start:], Content_Range=f"bytes {start}-{len(data) - 1}/{len(data)}")
                return self.reply(200, data)

            def misbehave(self, fault, data, start, size):
                part = data[start:]
                span = {"Content_Range": f"bytes {start}-{size - 1}/{size}"}
                status, headers = (206, span) if start else (200, {})
                if fault == "drop at once":
                    return self.hang_up()
                if fault == "drop in the middle":
                    self.send_response(status)
                    for key, value in headers.items():
                        self.send_header(key.replace("_", "-"), value)
                    self.send_header("Content-Length", str(len(part)))
                    self.end_headers()
                    self.wfile.write(part[:len(part) // 2])
                    self.wfile.flush()
                    return self.hang_up()
                if fault == "stall":
                    self.send_response(status)
                    for key, value in headers.items():
                        self.send_header(key.replace("_", "-"), value)
                    self.send_header("Content-Length", str(len(part)))
                    self.end_headers()
                    self.wfile.write(part[:len(part) // 3])
                    self.wfile.flush()
                    time.sleep(4)
                    return self.hang_up()
                if fault == "trickle":  # A byte now and then, for as long as the client reads.
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(part)))
                    self.end_headers()
                    with contextlib.suppress(OSError):
                        for byte in part:
                            self.wfile.write(bytes([byte]))
                            time.sleep(0.1)
                    return None
                if fault == "slow":
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(part)))
                    self.end_headers()
                    for begin in range(0, len(part), len(part) // 8 + 1):
                        self.wfile.write(part[begin:begin + len(part) // 8 + 1])
                        self.wfile.flush()
                        time.sleep(0.4)
                    return None
                if fault == "short":
                    return self.reply(status, part[:-1], **headers)
                if fault == "long":
                    return self.reply(status, part + b"!", **headers)
                if fault == "damaged":
                    return self.reply(status, bytes(byte ^ 1 for byte in part), **headers)
                if fault == "whole file":
                    return self.reply(200, data)
                if fault == "wrong range":
                    return self.reply(206, part, Content_Range=f"bytes {start + 1}-{size}/{size + 1}")
                if fault == "no range":
                    return self.reply(206, part)
                if fault == "html":
                    return self.reply(200, b"<html>Please log in</html>")
                if fault == "loop":
                    return self.reply(302, b"", Location=self.path)
                if fault == "bad status line":
                    self.wfile.write(b"HELO there\r\n\r\n")
                    return self.hang_up()
                status = int(fault)
                headers = {"Retry_After": "0"} if status in (429, 503) else {}
                return self.reply(status, b"not now", **headers)

        return Handler


# Faults that a later try can mend.
PASSING = ["drop at once", "drop in the middle", "stall", "short", "long", "damaged", "whole file", "wrong range", "no range", "html",
           "bad status line", "408", "416", "429", "500", "502", "503", "504"]


def plan(seed):
    """Faults by seed: each request has one by a chance, the first ones more often; none for ever."""
    chance = random.Random(seed)
    drawn = {}

    def fault(kind, name, tries):
        key = (kind, name, tries)
        if key not in drawn:
            drawn[key] = chance.choice(PASSING) if tries <= 4 and chance.random() < 0.5 else None
        # A listing has no digest of its own: one that is damaged but still JSON is another listing.
        return None if kind == "listing" and drawn[key] in ("stall", "whole file") else drawn[key]

    return fault
