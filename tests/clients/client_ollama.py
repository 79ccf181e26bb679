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
print("chat, stream, list")
