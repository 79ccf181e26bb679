"""A folder of its own for each test, and programs in it that stand for engines."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path


class WithFolder(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def program(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(f"#!{sys.executable}\n{text}\n")
        path.chmod(0o755)
        return path
