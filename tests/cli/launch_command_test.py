"""`dsv4 launch`: a client that stands in for the real ones sees its settings, and a server that answers."""

import os
import pathlib
import socket
import subprocess
import tempfile
import unittest

from dsv4_process import BINARY, PATIENCE, TINY, dsv4, free_port

# Asks the server as the client would, and says what it was given.
CLIENT = """#!/usr/bin/env python3
import json, os, sys, urllib.request
base = os.environ["OPENAI_API_BASE"]
body = json.dumps({"model": sys.argv[2].removeprefix("openai/"), "messages": [{"role": "user", "content": "What is the capital of France?"}],
                   "temperature": 0, "thinking": False}).encode()
request = urllib.request.Request(base + "/chat/completions", body, {"Content-Type": "application/json",
                                                                    "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
print(sys.argv[3:])
sys.exit(7)
"""


class Launch(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        (self.directory / "aider").write_text(CLIENT)
        (self.directory / "aider").chmod(0o755)
        self.env = {"PATH": f"{self.directory}:{os.environ['PATH']}", "XDG_STATE_HOME": str(self.directory)}

    def test_server_is_started_for_the_client_and_ends_with_it(self):
        port = free_port()
        process = dsv4("launch", "aider", "--port", port, "-m", TINY, "--threads", "1", "--api-key", "secret", "--", "--yes", "a b", env=self.env)
        self.assertEqual(process.returncode, 7, process.stderr)
        self.assertIn("Paris", process.stdout)
        self.assertIn("['--yes', 'a b']", process.stdout)
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=2)

    def test_a_running_server_is_taken(self):
        port = free_port()
        with subprocess.Popen([BINARY, "serve", "--port", str(port), "-m", TINY, "--alias", "mine"], stderr=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL) as server:
            try:
                for _ in range(int(PATIENCE * 10)):
                    try:
                        socket.create_connection(("127.0.0.1", port), timeout=1).close()
                        break
                    except OSError:
                        server.poll()
                process = dsv4("launch", "aider", "--port", port, env=self.env)
                self.assertEqual(process.returncode, 7, process.stderr)
                self.assertIn("Paris", process.stdout)
                self.assertIsNone(server.poll())
                # Elsewhere is the same to a client.
                process = dsv4("launch", "aider", "--url", f"http://127.0.0.1:{port}/", env=self.env)
                self.assertEqual(process.returncode, 7, process.stderr)
            finally:
                server.terminate()

    def test_print_does_the_same_by_hand(self):
        port = free_port()
        for client in ("aider", "claude", "codex", "llm", "opencode"):
            process = dsv4("launch", client, "--port", port, "--print", env=self.env)
            self.assertEqual(process.returncode, 0, process.stderr)
            self.assertIn(f"http://127.0.0.1:{port}", process.stdout)
            checked = subprocess.run(["bash", "-n"], input=process.stdout, text=True, capture_output=True, check=False)
            self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_what_is_missing_is_named(self):
        missing = dsv4("launch", "codex", "--port", free_port(), env=self.env | {"PATH": str(self.directory)})
        self.assertEqual(missing.returncode, 1)
        self.assertIn("codex: no such program", missing.stderr)
        dead = dsv4("launch", "aider", "--url", f"http://127.0.0.1:{free_port()}", env=self.env)
        self.assertEqual(dead.returncode, 1)
        bad_model = dsv4("launch", "aider", "--port", free_port(), "-m", "/nowhere", env=self.env)
        self.assertEqual(bad_model.returncode, 1)
        self.assertIn("/nowhere", bad_model.stderr)
        self.assertEqual(dsv4("launch", "emacs").returncode, 2)

    def test_a_url_is_one_of_a_server(self):
        for url in ("foo", "127.0.0.1:8000", "ftp://here", "http://", "http:///v1", "https://here:0", "http://here:65536", "http://here:", "http://a b"):
            with self.subTest(url=url):
                process = dsv4("launch", "aider", "--url", url, env=self.env)
                self.assertEqual(process.returncode, 2, process.stderr)
                self.assertIn(f"--url: got '{url}', wanted http(s)://HOST[:PORT][/PATH]", process.stderr)
        port = free_port()  # Of no server: taken as a URL, it is found out by asking.
        for url in (f"http://127.0.0.1:{port}", f"HTTP://localhost:{port}/", f"http://[::1]:{port}/a/b"):
            with self.subTest(url=url):
                process = dsv4("launch", "aider", "--url", url, env=self.env)
                self.assertEqual(process.returncode, 1, process.stderr)

    def test_seconds_to_wait_are_a_number_above_nothing(self):
        for seconds in ("0", "-1", "nan", "inf"):
            process = dsv4("launch", "aider", "--wait", seconds, env=self.env)
            self.assertEqual(process.returncode, 2, process.stderr)
            self.assertIn(f"--wait: got {seconds}, wanted more than 0", process.stderr)


if __name__ == "__main__":
    unittest.main()
