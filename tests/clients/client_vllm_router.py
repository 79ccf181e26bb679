# pip: vllm-router==0.1.17
"""vLLM's router, by two policies: chat, streams as they are made, responses, token ids."""

import sys
from pathlib import Path

from router_testing import ask, check, routed

program = Path(sys.executable).parent / "vllm-router"
for policy in ("cache_aware", "consistent_hash"):
    with routed(lambda port, policy=policy: [program, "--worker-urls", sys.argv[1], "--host", "127.0.0.1", "--port", str(port), "--policy", policy,
                                             "--log-level", "error"]) as port:
        pieces = check(port)
        status, _, reply = ask(port, "/v1/responses", {"model": "tiny", "input": "hi", "max_output_tokens": 16})
        assert status == 200 and reply["object"] == "response", reply
        status, _, models = ask(port, "/v1/models")
        assert status == 200 and "tiny" in [model["id"] for model in models["data"]], models
print(f"{pieces} pieces of 200 tokens, responses, models")
