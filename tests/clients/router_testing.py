"""What the tests of routers share: a router in front of the server, and what must go through it."""

import contextlib
import http.client
import json
import pathlib
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from dsv4_process import wait_until
from proxies_test import arrivals, free_port, started
from server_process import Server

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


# A port that refuses connections, and that no other program is given meanwhile.
NOWHERE = socket.socket()
NOWHERE.bind(("127.0.0.1", 0))


def deployed(name, own, changes, other=None):
    """A file of deploy/proxies with its addresses changed; they may name this router's port, the server's host and port, and those of another one, which is
    not there unless it is given."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "deploy" / "proxies" / name).read_text()
    server = urllib.parse.urlsplit(sys.argv[1])
    for before, after in changes.items():
        assert before in text, (name, before)
        text = text.replace(before, after.format(own=own, host=server.hostname, port=server.port, other=other.port if other else NOWHERE.getsockname()[1]))
    return text


def large_body(port, mib=2):
    """A prompt of some MiB is the server's to refuse."""
    status, _, reply = ask(port, "/v1/completions", {"model": "tiny", "prompt": "x " * (mib << 19), "max_tokens": 1})
    assert status == 400 and "context" in reply["error"]["message"], (status, reply)


def one_ends(command, how):
    """One of two servers ends while four clients ask. A stop loses no request; a kill loses what the server was answering. Returns the number of answers."""
    with Server("--context", 8192, "--name", "other", "--alias", "*", "--lame-duck-seconds", 5) as other, routed(lambda port: command(port, other)) as port:
        seen, lost, answers, ended, killed = set(), [], [], threading.Event(), [float("inf")]

        def both():
            seen.add(ask(port, "/v1/models", headers={"x-session-id": str(time.monotonic())})[2]["data"][0]["id"])
            return len(seen) == 2

        def client(index):
            turn, session = 0, {}
            while not ended.is_set():
                turn, begin = turn + 1, time.monotonic()
                body = {"model": "tiny", "prompt": "Once", "max_tokens": 20, "ignore_eos": True, "stream": turn % 3 == 0}
                try:
                    if index == 0:
                        large_body(port, 3)
                    else:
                        status, headers, reply = ask(port, "/v1/completions", body, {"x-session-id": f"{index} {turn}", **session})
                        assert status == 200 and (not body["stream"] or reply.endswith("data: [DONE]\n\n")), (status, reply)
                        if index == 1 and headers["Set-Cookie"]:  # A session by cookie, where the router has them.
                            session = {"Cookie": headers["Set-Cookie"].partition(";")[0]}
                    answers.append(begin)
                except (AssertionError, OSError, http.client.HTTPException) as error:
                    if how == signal.SIGTERM or begin > killed[0]:
                        lost.append(repr(error)[:300])
                time.sleep(0.02)

        wait_until(both, "both servers answer")
        clients = [threading.Thread(target=client, args=(index,)) for index in range(4)]
        for each in clients:
            each.start()
        time.sleep(1)
        other.process.send_signal(how)
        other.process.wait(60)
        killed[0] = time.monotonic()
        time.sleep(3)
        ended.set()
        for each in clients:
            each.join()
        assert not lost, (how, len(answers), lost)
        return len(answers)
