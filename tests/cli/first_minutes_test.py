"""A person's path from a fresh clone, each step at the first try and timed. Steps are the README's line, a chat turn in Chinese, an agent's session.

The clone builds its binary, as a person's does, with DSV4_FIRST_MINUTES=build (`./dev test -C Long -L long`). Otherwise its ./dev starts the
binary under test, so that the path is walked in seconds. Prints the times. Skipped, visibly, where this tree is not a clone.
"""

import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

from dsv4_process import BINARY, PATIENCE, ROOT

BUILDS = os.environ.get("DSV4_FIRST_MINUTES") == "build"
SLOW = 3600 if BUILDS else PATIENCE
SKIPPED = 77
CHINESE = "法国的首都是哪里？"
TICKET = {"type": "function", "function": {"name": "search_ticket", "description": "Search a ticket.", "parameters": {
    "type": "object", "properties": {"tags": {"type": "array", "description": "List of tags", "items": {"type": "string"}},
                                     "color": {"type": "string", "description": "Colour"}}, "required": ["tags", "color"]}}}
TICKET_QUESTION = {"role": "user", "content": "Search a ticket with tags cook, color golden, please."}


class FirstMinutes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.clone = self.folder / "dsv4"
        # A stranger's environment: no history, no settings, no model of one's own.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("DSV4_")}
        self.environment |= {"XDG_STATE_HOME": folder.name, "XDG_CONFIG_HOME": folder.name, "TERM": "xterm"}
        if not BUILDS:
            self.environment |= {"DSV4_BINARY": BINARY, "DSV4_MODEL": str(self.clone / "models" / "tiny")}

    def timed(self, what, action):
        begin = time.monotonic()
        result = action()
        print(f"{what}: {time.monotonic() - begin:.1f} s", flush=True)
        return result

    def test_the_path(self):
        self.timed("clone", lambda: subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(self.clone)], check=True))
        readme = (self.clone / "README.md").read_text()
        commands = re.search(r"```\ngit clone <this repository> dsv4 && cd dsv4\n(.+)\n```", readme)
        self.assertTrue(commands, "README.md: no block that begins with git clone")
        whole = "first answer, with the build" if BUILDS else "first answer"
        answer = self.timed(whole, lambda: self.run_line(commands[1]))
        self.assertIn("Paris", answer)
        self.timed("first chat turn in Chinese", self.chat)
        self.timed("first session of an agent", self.agent)

    def run_line(self, line):
        done = subprocess.run(["bash", "-c", line], cwd=self.clone, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=SLOW, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def chat(self):
        """Types what a person types, and reads what was understood from the file that /save writes."""
        master, slave = os.openpty()
        process = subprocess.Popen(["./dev", "run"], cwd=self.clone, env=self.environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        shown = ""

        def wait_for(text):
            nonlocal shown
            deadline = time.monotonic() + SLOW
            while text not in shown:
                self.assertLess(time.monotonic(), deadline, f"no {text!r} in {shown!r}")
                if select.select([master], [], [], 1)[0]:
                    shown += os.read(master, 65536).decode(errors="replace")
            shown = shown[shown.index(text) + len(text):]

        try:
            wait_for("/help.")
            os.write(master, b"/set max-tokens 300\r")  # The answer is drawn without a seed, and may be a long one.
            wait_for("max-tokens 300")
            wait_for("\n")
            os.write(master, f"{CHINESE}\r".encode())
            wait_for("/anyway")  # The small model says that it does not know these words.
            os.write(master, b"/anyway\r")
            wait_for(", answer ")
            saved = self.folder / "chat.json"
            os.write(master, f"/save {saved}\r".encode())
            wait_for("2 messages written")
            question, answer = json.loads(saved.read_text())
            self.assertEqual(question, {"role": "user", "content": CHINESE})
            self.assertTrue(answer["content"] or answer["reasoning_content"])
            os.write(master, b"/exit\r")
            self.assertEqual(process.wait(timeout=PATIENCE), 0)
        finally:
            process.kill()
            process.wait()
            os.close(master)

    def agent(self):
        """An agent's loop over the server: a call, its result, an answer; then a request as Claude Code sends it, streamed."""
        binary = BINARY if not BUILDS else str(self.clone / "build" / "release" / "dsv4")
        server = subprocess.Popen([binary, "serve", "--port", "0", "--alias", "*"], cwd=self.clone, env=self.environment, stderr=subprocess.PIPE, text=True)
        try:
            line = next(line for line in server.stderr if " at http://" in line)
            url = re.search(r"http://\S+", line)[0]

            def post(path, body):
                request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
                    return reply.read().decode()
            body = {"model": "any", "messages": [TICKET_QUESTION], "tools": [TICKET], "temperature": 0, "thinking": False, "max_tokens": 200}
            message = json.loads(post("/v1/chat/completions", body))["choices"][0]["message"]
            call = message["tool_calls"][0]
            self.assertEqual(call["function"]["name"], "search_ticket")
            body["messages"] += [message, {"role": "tool", "tool_call_id": call["id"], "content": "two tickets"}]
            self.assertTrue(json.loads(post("/v1/chat/completions", body))["choices"][0]["message"]["content"])
            shapes = json.loads((self.clone / "tests" / "fixtures" / "client-shapes.json").read_text())
            recorded = shapes["bases"]["claude_code"]["body"] | {"max_tokens": 16, "stream": True}
            self.assertIn("event: message_stop", post("/v1/messages", recorded))
        finally:
            server.terminate()
            server.wait(timeout=PATIENCE)
            server.stderr.close()


if __name__ == "__main__":
    if not shutil.which("git") or subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--git-dir"], capture_output=True, check=False).returncode:
        print("skipped: this tree is not a clone")
        sys.exit(SKIPPED)
    unittest.main()
