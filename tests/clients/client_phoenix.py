# pip: arize-phoenix==20.26.1
"""Phoenix, a collector that takes protobuf alone: spans of a request arrive and are found by its own API."""

import json
import os
import sys
import tempfile
import urllib.error
import urllib.request

from dsv4_process import wait_until
from proxies_test import free_port, started
from server_process import Server

port, grpc = free_port(), free_port()
with tempfile.TemporaryDirectory() as folder:
    os.environ |= {"PHOENIX_PORT": str(port), "PHOENIX_GRPC_PORT": str(grpc), "PHOENIX_WORKING_DIR": folder, "PHOENIX_HOST": "127.0.0.1", "PHOENIX_TELEMETRY_ENABLED": "false"}

    def get(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as reply:
            return json.load(reply)

    def spans():
        try:
            return get("/v1/projects/default/spans?limit=100")["data"]
        except urllib.error.HTTPError:
            return []

    with started([sys.executable, "-m", "phoenix.server.main", "serve"], port), Server("--context", 2048, "--otlp-endpoint", f"http://127.0.0.1:{port}") as server:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
        server.post("/v1/chat/completions", body)
        server.request("POST", "/v1/chat/completions", {"messages": "none"})
        wait_until(lambda: len(spans()) >= 5, "spans in the collector")
        found = spans()
roots = [span for span in found if span["name"].startswith("POST")]
assert len(roots) == 2, [span["name"] for span in found]
answered = next(span for span in roots if span["attributes"].get("http.response.status_code") == 200)
children = [span["name"] for span in found if span["parent_id"] == answered["context"]["span_id"]]
assert sorted(children) == ["decode", "prefill", "queue"], children
assert answered["attributes"]["gen_ai.request.model"] == "tiny", answered
print(f"{len(found)} spans")
