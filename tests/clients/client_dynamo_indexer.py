# pip: --no-deps ai-dynamo-runtime==1.6.1 annotated-types==0.8.0 pydantic==2.13.5 pydantic_core==2.46.5 typing-inspection==0.4.5 typing_extensions==4.16.0
"""Dynamo's index of kept blocks: through evictions and replays it has the server's own table, in both forms of events, and finds prompts by their tokens."""

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

from dsv4_process import free_port, wait_until
from kv_testing import BLOCK, EVICTING, NUM_REQUESTS, blocks, load, needs_zeromq, publishing

needs_zeromq()


@contextlib.contextmanager
def index():
    """call(path, body) of a running indexer."""
    port = free_port()

    def call(path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", None if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read() or b"null")

    def answers():
        with contextlib.suppress(OSError):
            call("/workers")
            return True
        return False
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder, "log")
        with log.open("w") as out:
            process = subprocess.Popen([sys.executable, "-m", "dynamo.indexer", "--port", str(port)], stdout=out, stderr=out)
        try:
            wait_until(answers, "the indexer's answer")
            yield call
            assert "ERROR" not in (text := log.read_text()) and "Failed" not in text, text[-3000:]
        finally:
            process.kill()
            process.wait()


def check(form):
    server, endpoint, replay = publishing("--kv-events-form", form, *EVICTING)
    with server, index() as call:
        for number in range(5):  # Events from before it listens come by the replay.
            server.post("/v1/completions", {"prompt": list(range(5 + number, 80 + number)), "max_tokens": 1})
        call("/register", {"instance_id": 1, "endpoint": endpoint, "replay_endpoint": replay, "model_name": "tiny", "block_size": BLOCK})
        wait_until(lambda: [listener["status"] for worker in call("/workers") for listener in worker["listeners"].values()] == ["active"], "an active listener")

        def known():
            events = [each["event"]["data"] for model in call("/dump").values() for each in model["events"]]
            return sorted(block["block_hash"] for event in events for block in event["stored"]["blocks"])
        compared = []

        def compare():
            wait_until(lambda: known() == blocks(server)[1], "the indexer has the server's table")
            compared.append(len(known()))
        prompts = load(server, compare, every=100)
        assert min(compared) > 10, compared
        longest = max(call("/query", {"token_ids": prompt, "model_name": "tiny"})["instances"].get("1", {}).get("longest_matched", 0) for prompt in prompts[-20:])
        assert longest >= BLOCK, longest
        server.request("POST", "/flush_cache")
        wait_until(lambda: not blocks(server)[1], "an empty cache")
        wait_until(lambda: not known(), "an empty index")
        return f"{form}: {len(compared)} comparisons of up to {max(compared)} blocks"


print(f"{NUM_REQUESTS} requests, {check('maps')}, {check('arrays')}")
