# pip: litellm[proxy]==1.108.7
"""LiteLLM's proxy with deploy/proxies/litellm.yaml: whole answers, streams as they are made, refusals, a large body, and a server that is not there."""

import http.client
import json
import os
import pathlib
import secrets
import sys
import tempfile
import time

from router_testing import ask, deployed

from dsv4_process import wait_until
from proxies_test import free_port, started

KEY = "sk-" + secrets.token_hex(32)  # It does not start with none.
HEADERS = {"Authorization": "Bearer " + KEY}
CHAT = "/v1/chat/completions"
ASK = {"model": "deepseek-v4", "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}


def pieces(port):
    """How many pieces a stream of 200 tokens comes in, and its text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", CHAT, json.dumps({**ASK, "stream": True, "max_tokens": 200, "ignore_eos": True}), {"Content-Type": "application/json", **HEADERS})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    count, text = 0, b""
    while piece := response.read1(65536):
        count, text = count + 1, text + piece
        time.sleep(0.001)
    connection.close()
    assert text.rstrip().endswith(b"data: [DONE]") and b"reasoning_content" in text, text[-300:]
    return count


os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "LITELLM_MASTER_KEY": KEY}
port = free_port()
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "litellm.yaml")
    path.write_text(deployed(path.name, port, {"http://10.0.0.1:8000/v1": "http://{host}:{port}/v1", "http://10.0.0.2:8000/v1": "http://{host}:{other}/v1"}))
    with started([pathlib.Path(sys.executable).parent / "litellm", "--config", path, "--host", "127.0.0.1", "--port", str(port)], port):
        wait_until(lambda: ask(port, "/health/readiness")[0] == 200, "the proxy is ready")
        for _ in range(6):
            status, _, reply = ask(port, CHAT, {**ASK, "max_tokens": 200}, HEADERS)
            assert status == 200 and "Paris" in reply["choices"][0]["message"]["content"], reply
            assert reply["choices"][0]["message"]["reasoning_content"], reply
        count = max(pieces(port) for _ in range(3))
        assert count >= 20, count
        status, _, reply = ask(port, CHAT, {**ASK, "temperature": "warm"}, HEADERS)
        assert status == 400 and "temperature" in reply["error"]["message"], (status, reply)
        status, _, reply = ask(port, CHAT, {**ASK, "messages": [{"role": "user", "content": "x " * (1 << 20)}]}, HEADERS)
        assert status == 400 and "context" in reply["error"]["message"], (status, str(reply)[:300])
print(f"{count} pieces of 200 tokens, refusals, 2 MiB of body, one server of two")
