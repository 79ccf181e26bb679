# pip: aider-chat==0.86.2
"""aider: a session that edits a file's folder in one message, as docs/clients/aider.md has it. The small model knows no edits: the session must end well."""

import os
import pathlib
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as folder:
    (pathlib.Path(folder) / ".aider.model.settings.yml").write_text("- name: openai/tiny\n  extra_params:\n    max_tokens: 100\n")
    (pathlib.Path(folder) / "main.py").write_text("print(1)\n")
    done = subprocess.run(
        [pathlib.Path(sys.executable).parent / "aider", "--model", "openai/tiny", "--yes-always", "--no-git", "--no-check-update", "--no-gitignore",
         "--analytics-disable", "--no-show-model-warnings", "--no-pretty", "--message", "What is the capital of France?", "main.py"],
        cwd=folder, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL,
        env={**os.environ, "HOME": folder, "OPENAI_API_BASE": sys.argv[1] + "/v1", "OPENAI_API_KEY": "none"})
said = done.stdout
# The bound on the answer may end it, which aider reports; an error of the API is one of litellm's.
assert done.returncode == 0 and "litellm." not in said and ("Tokens:" in said or "Output tokens:" in said), (said, done.stderr)
print(next(line for line in said.splitlines() if "okens:" in line))
