"""Every example of every help text, run as it stands."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from dsv4_process import BINARY, FIXTURES, PATIENCE, ROOT, dsv4

LINE = re.compile(r"^  ((?:dsv4|cat) .*?)(?:   +\(.*\))?$", re.MULTILINE)


def examples(text):
    return LINE.findall(text[text.rindex("Examples:"):]) if "Examples:" in text else []


class Help(unittest.TestCase):
    def test_examples(self):
        overview = dsv4("help").stdout
        commands = re.findall(r"^  (\w+) {3,}\S", overview[overview.index("Subcommands:"):], re.MULTILINE)
        self.assertGreaterEqual(len(commands), 11)
        lines = examples(overview)
        for command in commands:
            found = examples(dsv4("help", command).stdout)
            self.assertTrue(found, f"dsv4 help {command}: no example")
            lines += found
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "notes.txt").write_text("The sea is wide.\n")
            (folder / "ids.json").write_text("[1, 2, 3]")
            for file in ("encoding-cases.json", "parsing-cases.json"):
                shutil.copy(FIXTURES / file, folder)
            (folder / "models").mkdir()
            (folder / "models" / "tiny").symlink_to(ROOT / "models" / "tiny")
            (folder / "bin").mkdir()
            (folder / "bin" / "dsv4").symlink_to(BINARY)
            environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
            for line in dict.fromkeys(lines):
                with self.subTest(line=line):
                    self.run_line(line, folder, environment)

    def run_line(self, line, folder, environment):
        serves = line.startswith("dsv4 serve")
        prefix = "exec " if serves else ""
        if "--server" in line:
            line = f"dsv4 serve --port 8080 & server=$!; sleep 1; {line}; code=$?; kill $server; wait $server; exit $code"
        process = subprocess.Popen(["bash", "-c", f"{prefix}{line}"], cwd=folder,
                                   env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        if serves:
            # Another program may have the port; then the message says so, and the example is right.
            time.sleep(1)
            process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=PATIENCE)[0]
        if "Address already in use" not in output:
            self.assertEqual(process.returncode, 0, output)


if __name__ == "__main__":
    unittest.main()
