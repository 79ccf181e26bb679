"""What the tests of routers share: a router in front of the server, and what must go through it."""

import contextlib
import json
import urllib.error
import urllib.request

from dsv4_process import wait_until
from proxies_test import arrivals, free_port, started

CHAT = "/v1/chat/completions"
QUESTION = {"model": "tiny", "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 60, "thinking": {"type": "disabled"}}


def ask(port, path, body=None, headers=None):
    """(status, headers, JSON or text)."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            status, got, text = reply.status, reply.headers, reply.read().decode()
    except urllib.error.HTTPError as error:
        status, got, text = error.code, error.headers, error.read().decode()
    with contextlib.suppress(ValueError):
        text = json.loads(text)
    return status, got, text


@contextlib.contextmanager
def routed(command):
    """The router's port; the command is made of it."""
    port = free_port()
    with started(command(port), port):
        wait_until(lambda: ask(port, CHAT, {**QUESTION, "max_tokens": 1})[0] == 200, "the router knows the server")
        yield port


def check(port):
    """A whole answer, a stream in pieces, an id and a refusal. Returns how many pieces came."""
    status, _, reply = ask(port, CHAT, QUESTION)
    assert status == 200 and "Paris" in reply["choices"][0]["message"]["content"], reply
    status, headers, _ = ask(port, CHAT, QUESTION, {"x-request-id": "from-outside"})
    assert status == 200 and headers["x-request-id"] == "from-outside", dict(headers)
    status, _, reply = ask(port, CHAT, {**QUESTION, "temperature": "warm"})
    assert 400 <= status < 500, (status, reply)
    pieces = max(len(arrivals(port)) for _ in range(3))  # Pieces come together where the machine is busy.
    assert pieces >= 20, pieces
    return pieces
