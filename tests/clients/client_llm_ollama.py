# pip: llm==0.36 llm-ollama==0.19.1
"""llm with its plugin for ollama: it asks /api/show what a model can do before it lists it."""

import os
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as folder:
    environment = {**os.environ, "OLLAMA_HOST": sys.argv[1], "LLM_USER_PATH": folder}

    def llm(*words):
        done = subprocess.run([sys.executable, "-m", "llm", *words], capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "tiny:latest" in llm("models"), llm("models")
    assert "Paris" in llm("-m", "ollama/tiny:latest", "-o", "temperature", "0", "What is the capital of France?")
print("models, prompt")
