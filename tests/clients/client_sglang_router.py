# pip: sglang-router==0.3.2
"""SGLang's router: the model has its name, streams come as they are made, and the prefix cache is emptied through it."""

import sys

from router_testing import ask, check, routed

with routed(lambda port: [sys.executable, "-m", "sglang_router.launch_router", "--worker-urls", sys.argv[1], "--host", "127.0.0.1", "--port", str(port),
                          "--policy", "cache_aware", "--log-level", "error"]) as port:
    pieces = check(port)
    status, _, models = ask(port, "/v1/models")
    assert status == 200 and "tiny" in [model["id"] for model in models["data"]], models
    status, _, reply = ask(port, "/flush_cache", {})
    assert status == 200, (status, reply)
    status, _, reply = ask(port, "/v1/completions", {"model": "tiny", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0})
    assert status == 200 and reply["choices"][0]["text"], reply
print(f"{pieces} pieces of 200 tokens, the model's name, the cache")
