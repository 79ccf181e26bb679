"""Every command of README.md is run, as far as this machine can. Measurements use a small model. A command that needs a GPU or builds everything is looked up."""

import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import unittest

from dsv4_process import BINARY, PATIENCE, ROOT, TINY

sys.path.insert(0, str(ROOT / "tests/server"))
from server_process import Server  # noqa: E402

README = (ROOT / "README.md").read_text()
# ./dev starts the binary under test instead of building one.
ENVIRONMENT = {**os.environ, "DSV4_BINARY": BINARY, "DSV4_MODEL": str(TINY)}
# In place of what takes minutes: the same options with less to do.
SMALLER = ((r"synthetic:(mini|flash|pro)", "synthetic:tiny"), (r"--max-layers \d+", "--max-layers 2"), (r"\b8k\b", "8"), (r"--batch 64,1", "--batch 2,1"),
           (r"--prefill (512|8192)", "--prefill 16"), (r"--depth 8192", "--depth 8"), (r"--backend cuda", "--backend cpu"),
           (r" --experts auto --gpu-memory \d+", ""))  # Of a GPU: experts_command_test has them.


def run(line, stdin=""):
    return subprocess.run(["bash", "-c", line], cwd=ROOT, env=ENVIRONMENT, input=stdin, capture_output=True, text=True, timeout=600, check=False)


class Readme(unittest.TestCase):
    def expect(self, line, stdin=""):
        done = run(line, stdin)
        self.assertEqual(done.returncode, 0, f"{line}\n{done.stderr}")
        return done.stdout

    def test_the_first_lines(self):
        blocks = [body for kind, body in re.findall(r"^```(\w*)\n(.*?)^```\n", README, re.MULTILINE | re.DOTALL) if not kind]
        lines = [re.split(r" {3,}", line)[0] for block in blocks for line in block.splitlines()]
        self.assertGreaterEqual(len(lines), 8)
        known = self.expect("./dev help")
        for line in lines:
            with self.subTest(line=line):
                if line.startswith("git clone"):
                    continue  # first_minutes_test.py
                if line in ("./dev build dsv4", "./dev test"):
                    words = line.split()
                    self.assertRegex(known, rf"(?m)^  {words[1]} ")
                    self.assertIn(words[-1], known)
                elif line == "build/release/dsv4 serve":
                    self.serve(f"{BINARY} serve --port 0")
                elif line == "./dev run":
                    self.assertIn("Paris", self.expect(f"{line} --temperature 0", stdin="What is the capital of France?\n"))
                else:
                    self.expect(line.replace("DIR", str(TINY)).replace('"..."', '"Hello" -n 4'))

    def test_the_table_of_figures(self):
        table = README[README.index("<!-- figures: begin -->"):README.index("<!-- figures: end -->")]
        commands = {re.search(r"`([^`]+)` \|$", line)[1].replace("\\|", "|") for line in table.splitlines() if line.endswith("` |")}
        self.assertGreaterEqual(len(commands), 8)
        known = self.expect("./dev help")
        for command in sorted(commands):
            with self.subTest(command=command):
                words = shlex.split(command)
                if words[:2] == ["./dev", "test"]:
                    self.look_for_tests(words[2:])
                elif words[0] == "./dev":
                    self.assertRegex(known, rf"(?m)^  {words[1]} ")
                elif words[0] == "dsv4":
                    for pattern, smaller in SMALLER:
                        command = re.sub(pattern, smaller, command)
                    options = command.removeprefix("dsv4").replace(" --check off", "")
                    if " --server " in options:
                        self.load(options)
                    elif " --speculation " in options:  # Has a check of its own.
                        self.assertRegex(self.expect(f"{BINARY}{options}"), r"(?m)^ratio ")
                    else:
                        self.assertRegex(self.expect(f"{BINARY}{options} --repeat 1 --check off"), r"(?m)^(decode|prefill) ")
                elif "/" in words[0]:
                    self.assertTrue(os.access(ROOT / words[0], os.X_OK), f"{words[0]}: no such program")
                else:
                    self.assertTrue(list((ROOT / "bench").rglob(f"{words[0]}.cc")), f"{words[0]}: no such benchmark")

    def load(self, options):
        with Server("--context", 4096) as server:
            options = re.sub(r"http://\S+", server.url, options)
            self.assertRegex(self.expect(f"{BINARY}{options} --seconds 1"), r"(?m)^first token ")

    def look_for_tests(self, options):
        build = pathlib.Path(BINARY).parent
        if not (build / "CTestTestfile.cmake").exists() or not shutil.which("ctest"):
            self.skipTest("the binary lies outside a build folder")
        listed = subprocess.run(["ctest", "--test-dir", build, "-N", *options], capture_output=True, text=True, check=True).stdout
        self.assertRegex(listed, r"Total Tests: [1-9]")

    def test_the_table_of_commands(self):
        overview = self.expect(f"{BINARY} help")
        table = README[README.index("\n## Commands\n"):README.index("\n## Finding your way\n")]
        cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
        self.assertGreaterEqual(len(cells), 8)
        for cell in cells:
            for part in re.findall(r"`([^`]+)`", cell):
                command = part.removeprefix("dsv4 ").split()[0]
                with self.subTest(command=command):
                    self.assertRegex(overview, rf"(?m)^  {command} ")
                    self.expect(f"{BINARY} {command} --help")

    def serve(self, line):
        process = subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        try:
            self.assertTrue(any(" at http://" in said for said in iter(process.stderr.readline, "")))
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=PATIENCE), 0)
        finally:
            process.kill()
            process.communicate()


if __name__ == "__main__":
    unittest.main()
