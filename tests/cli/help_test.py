"""Every example of every help text, run as it stands."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from faulty_hub import Hub

from dsv4_process import BINARY, FIXTURES, PATIENCE, ROOT, dsv4

# Until the server in the background serves, or has ended.
# The log is empty at first: that of the server before has the word too.
WAIT = "until grep -q ' serves ' log || ! kill -0 $server; do sleep 0.05; done"
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
            (folder / "texts.jsonl").write_text('{"text": "The capital of France is Paris."}\n')
            (folder / "choices.jsonl").write_text('{"prompt": "2 + 2 =", "choices": [" 3", " 4"], "answer": 1}\n')
            (folder / "requests.jsonl").write_text('{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "The sea", "max_tokens": 4}}\n')
            (folder / "ids.json").write_text("[1, 2, 3]")
            for file in ("encoding-cases.json", "parsing-cases.json"):
                shutil.copy(FIXTURES / file, folder)
            (folder / "models").mkdir()
            (folder / "models" / "tiny").symlink_to(ROOT / "models" / "tiny")
            (folder / "bin").mkdir()
            (folder / "bin" / "dsv4").symlink_to(BINARY)
            for client in ("aider", "claude"):  # Stand-ins: what they are told is tested in launch_command_test.py.
                (folder / "bin" / client).write_text("#!/bin/sh\nexit 0\n")
                (folder / "bin" / client).chmod(0o755)
            hub = Hub({"config.json": b"{}"}, name="deepseek-ai/DeepSeek-V4-Flash")
            self.addCleanup(hub.close)
            environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HF_ENDPOINT": hub.url, "HF_HOME": name,
                           "HF_HUB_CACHE": "", "XDG_STATE_HOME": name}
            for line in dict.fromkeys(lines):
                with self.subTest(line=line):
                    self.run_line(line, folder, environment)

    def test_completion_and_manual_know_every_option(self):
        overview = dsv4("help").stdout
        commands = re.findall(r"^  (\w+) {3,}\S", overview[overview.index("Subcommands:"):], re.MULTILINE)
        scripts = [dsv4("completion", shell).stdout for shell in ("bash", "zsh", "fish")]
        for command in commands:
            text = dsv4(command, "--help-all").stdout
            page = dsv4("man", command).stdout
            self.assertTrue(page.startswith(f".TH DSV4-{command.upper()} 1\n"))
            own = text[:text.index("Options of every command")]
            for option in re.findall(r"^  (?:-\w,)?--([\w-]+)", own, re.MULTILINE):
                self.assertIn(("--" + option).replace("-", "\\-"), page)
                self.assertIn("--" + option, scripts[0])
                self.assertIn(f"--{option}:", scripts[1])
                self.assertIn(f" -l {option}", scripts[2])
        self.assertIn("\\-\\-backend", dsv4("man").stdout)
        self.assertEqual(dsv4("man", "nothing").returncode, 2)
        self.assertEqual(dsv4("completion", "cmd").returncode, 2)
        if shutil.which("groff"):
            lint = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=dsv4("man", "run").stdout, text=True,
                                  capture_output=True, check=True)
            self.assertEqual(lint.stderr, "")

    def test_completion_offers_what_a_command_takes(self):
        """Option by option of the program: offered, by each shell's script, where the command's help lists it and the command line takes it."""
        shared = re.findall(r"^  (?:-\w,)?--([\w-]+)", dsv4("--help-all").stdout, re.MULTILINE)
        overview = dsv4("help").stdout
        commands = re.findall(r"^  (\w+) {3,}\S", overview[overview.index("Subcommands:"):], re.MULTILINE)
        bash, zsh, fish = (dsv4("completion", shell).stdout for shell in ("bash", "zsh", "fish"))
        refused = 0
        for command in commands:
            text = dsv4(command, "--help-all").stdout
            taken = set(re.findall(r"^  (?:-\w,)?--([\w-]+)", text[text.index("Options of every command"):], re.MULTILINE)) | {"help", "version"}
            own = set(re.findall(r"^  (?:-\w,)?--([\w-]+)", text[:text.index("Options of every command")], re.MULTILINE))
            offered = {"bash": re.search(rf"^      {command}\) options='(.*)' ;;", bash, re.MULTILINE)[1].split()}
            block = re.search(rf"^      \({command}\) (_dsv4_shared; )?list\+?=\((.*?)^      \) ;;", zsh, re.MULTILINE | re.DOTALL)
            everywhere = re.search(r"^_dsv4_shared\(\) \{(.*?)^\}", zsh, re.MULTILINE | re.DOTALL)[1] if block[1] else ""
            offered["zsh"] = re.findall(r"^        '(--[\w-]+):", everywhere + block[2], re.MULTILINE)
            offered["fish"] = ["--" + name for refusing, name in re.findall(
                r"^complete -c dsv4(?: -n 'not __fish_seen_subcommand_from ([^']*)')?(?: -s \w)? -l ([\w-]+)", fish, re.MULTILINE)
                if command not in refusing.split()] + ["--" + name for name in own]
            for option in set(shared) - own:
                refused += option not in taken
                for shell, names in offered.items():
                    self.assertEqual("--" + option in names, option in taken, f"{shell}: {command} --{option}")
        self.assertGreater(refused, 90)
        self.assertEqual(dsv4("pull", "a/b", "--backend", "cpu").returncode, 2)
        self.assertIn("\\-\\-threads", dsv4("man", "convert").stdout)
        self.assertNotIn("\\-\\-backend", dsv4("man", "convert").stdout)

    def test_completion_in_bash(self):
        def complete(*words):
            quoted = " ".join(f"'{word}'" for word in words)
            script = (f"source <({BINARY} completion bash); COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _dsv4; "
                      'printf "%s\\n" "${COMPREPLY[@]}"')
            done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True)
            self.assertEqual(done.stderr, "")
            return done.stdout.split()
        self.assertEqual(complete("dsv4", "ser"), ["serve"])
        self.assertEqual(complete("dsv4", "run", "--temp"), ["--temperature"])
        self.assertEqual(complete("dsv4", "run", "--reasoning", ""), ["show", "hide", "only"])
        self.assertEqual(complete("dsv4", "serve", "--backend", "c"), ["cpu", "cuda"])
        self.assertEqual(complete("dsv4", "--back"), ["--backend"])
        self.assertEqual(complete("dsv4", "convert", "--back"), [])
        self.assertEqual(complete("dsv4", "convert", "--experts", "n"), ["nvfp4"])
        self.assertEqual(complete("dsv4", "convert", "--numerics", "p"), [])
        self.assertEqual(complete("dsv4", "convert", "--log-level", "w"), ["warning"])
        self.assertEqual(complete("dsv4", "help", "inst"), [])
        self.assertEqual(complete("dsv4", "launch", ""), ["aider", "claude", "codex", "llm", "opencode"])
        self.assertEqual(complete("dsv4", "-m", "models/tiny", "diagnose", "resi"), ["residual"])
        self.assertEqual(complete("dsv4", "launch", "aider", f"{ROOT}/READM"), [f"{ROOT}/README.md"])

    def test_completion_in_zsh_and_fish(self):
        for shell, words in (("zsh", r"\(launch\) list=\((.+)\) ;;"), ("fish", r"from launch; and not __fish_seen_subcommand_from .*' -f -a '(.+)'")):
            script = dsv4("completion", shell).stdout
            self.assertEqual(re.search(words, script)[1].split(), ["aider", "claude", "codex", "llm", "opencode"])
            if shutil.which(shell):
                subprocess.run([shell, "-n", "/dev/stdin"] if shell == "fish" else [shell, "-n"], input=script, text=True, check=True)

    def run_line(self, line, folder, environment):
        serves = line.startswith("dsv4 serve")
        if serves:
            line = f": >log; {line} 2>log & server=$!; {WAIT}; kill $server; wait $server; code=$?; cat log; exit $code"
        if "--server" in line:
            line = f": >log; dsv4 serve --port 8080 2>log & server=$!; {WAIT}; {line}; code=$?; kill $server; wait $server; cat log; exit $code"
        process = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False)
        # Another program may have the port; then the message says so, and the example is right.
        if "Address already in use" not in process.stdout:
            self.assertEqual(process.returncode, 0, process.stdout)


if __name__ == "__main__":
    unittest.main()
