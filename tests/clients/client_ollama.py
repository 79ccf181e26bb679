# pip: ollama==0.6.3
"""ollama's own client."""

import sys

import ollama

client = ollama.Client(host=sys.argv[1])
assert client.list().models[0].model == "tiny:latest"
messages = [{"role": "user", "content": "What is the capital of France?"}]
reply = client.chat(model="tiny", messages=messages, think=True, options={"temperature": 0})
assert "Paris" in reply.message.content and reply.message.thinking
assert "Paris" in "".join(part.message.content for part in client.chat(model="tiny", messages=messages, stream=True, options={"temperature": 0}))
options = {"temperature": 0, "num_predict": 60}
assert "Paris" in client.generate(model="tiny", prompt="What is the capital of France?", think=False, options=options).response
assert "".join(part.response for part in client.generate(model="tiny", prompt="def f(", suffix="return x", stream=True, options=options)) is not None
shown = client.show("tiny")
assert {"completion", "tools", "thinking"} <= set(shown.capabilities), shown
assert client.ps().models[0].model == "tiny:latest"
assert client.chat(model="tiny", messages=[]).done_reason == "load"
for ask, word in ((lambda: client.embed(model="tiny", input="x"), "embedding server"), (lambda: client.pull("tiny"), "dsv4 pull"),
                  (lambda: client.chat(model="tiny", messages=messages, options={"mirostat": 2}), "mirostat")):
    try:
        ask()
        raise SystemExit(f"{word}: no error")
    except ollama.ResponseError as error:
        assert isinstance(error.error, str) and word in error.error, error.error
print("chat, stream, list, generate, show, ps, load, errors")
