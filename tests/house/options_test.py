"""Checks that options stand once, in docs/options, and that these pages are what the sources register.

With the path of a binary behind the file's name (as ctest runs it) the pages are compared with that program's own help texts. Without one,
or where it is not built, the names are compared with the sources.
"""

from __future__ import annotations

import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
NAME = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
# Options of the parser itself, which no page has.
PARSERS = {"--help", "--help-all", "--version"}
# Options of other programs that the pages speak of: ./dev, scripts of the repository, compilers, clients, launchers.
OTHERS = {
    "--add-host", "--build", "--cast", "--cflags", "--changed", "--clients", "--cuda", "--edit-format", "--fmad", "--folder", "--gpu",
    "--key", "--libs", "--local-dir", "--master-addr", "--minutes", "--mode", "--n-cpu-moe", "--nnodes", "--no-python",
    "--no-show-model-warnings", "--node-rank", "--nproc-per-node", "--only", "--pack", "--preset", "--python", "--recipe", "--rival",
    "--rival-pass-tokens", "--sandbox", "--sanitizers", "--skip-git-repo-check", "--target", "--valgrind", "--variant", "--wheels", "--write",
}


def documented() -> dict[str, set[str]]:
    """The options of each page of docs/options."""
    return {page.name: {name for row in re.findall(r"^\|`([^`]*)`", page.read_text(), flags=re.MULTILINE) for name in NAME.findall(row)}
            for page in sorted((ROOT / "docs/options").glob("*.md"))}


def registered() -> set[str]:
    """The names that sources give to CLI11: whole string literals, "-m,--model" and "--a,!--b" among them."""
    found = set()
    for path in (ROOT / "apps").rglob("*.cc"):
        text = path.read_text()
        if "add_option" in text or "add_flag" in text:
            for literal in re.findall(r'"((?:[\w-]+,)*!?--[a-z0-9-]+(?:\{\w+\})?(?:,!?--[a-z0-9-]+(?:\{\w+\})?)*)"', text):
                found |= set(NAME.findall(literal))
    return found


def pages() -> list[Path]:
    """The pages for people, without those of the options."""
    return [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "options")]


def tables_of_options(text: str, known: set[str]) -> list[str]:
    """The first rows of tables that document options: two rows or more whose first cell is nothing but an option."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text + "\n", flags=re.MULTILINE):
        rows = [row for row in block.splitlines() if re.match(r"\|\s*(`-[^`]*`[, ]*)+\|", row) and known & set(NAME.findall(row.split("|")[1]))]
        if len(rows) > 1 or re.match(r"\|\s*Option\s*\|", block):
            found.append((rows or [block])[0])
    return found


class OptionsTest(unittest.TestCase):
    """One test per promise."""

    def test_pages_have_what_the_sources_register(self) -> None:
        known = set().union(*documented().values())
        self.assertGreater(len(known), 150)
        self.assertEqual(registered() - PARSERS - known, set(), "not in docs/options: run tools/option_pages.py BINARY")
        text = "".join(path.read_text() for path in (ROOT / "apps").rglob("*.cc"))
        self.assertEqual({name for name in known if name not in text}, set(), "gone from the sources: run tools/option_pages.py BINARY")

    def test_options_stand_once(self) -> None:
        known = set().union(*documented().values())
        twice = [f"{page.relative_to(ROOT)}: {row[:80]}" for page in pages() for row in tables_of_options(page.read_text(), known)]
        self.assertEqual(twice, [], "a table of options outside of docs/options: link there")
        for page in sorted((ROOT / "docs/options").glob("*.md")):
            for section in page.read_text().split("\n## ")[1:]:
                names = [name for row in re.findall(r"^\|`([^`]*)`", section, flags=re.MULTILINE) for name in NAME.findall(row.split(" ")[0])]
                self.assertEqual(sorted(names), sorted(set(names)), f"{page.name}, {section.splitlines()[0]}")

    def test_options_that_pages_name_exist(self) -> None:
        known = set().union(*documented().values()) | OTHERS | PARSERS
        unknown = [f"{page.relative_to(ROOT)}: {name}" for page in pages() for name in sorted(set(NAME.findall(page.read_text())) - known)]
        self.assertEqual(unknown, [])

    def test_rules_find_what_they_should(self) -> None:
        known = {"--port", "--host"}
        self.assertEqual(tables_of_options("| `--host H`, `--port P` | a |\n| `--port P` | b |\n", known), ["| `--host H`, `--port P` | a |"])
        self.assertEqual(tables_of_options("| `--port P` | b |\n\n| `--other` | c |\n| `--more` | d |\n", known), [])
        self.assertEqual(tables_of_options("| Option | |\n|---|---|\n| x | y |\n", known), ["| Option | |\n|---|---|\n| x | y |\n"])

    @unittest.skipUnless(BINARY and BINARY.exists(), "dsv4 is not built")
    def test_pages_are_what_the_program_says(self) -> None:
        done = subprocess.run([sys.executable, ROOT / "tools/option_pages.py", str(BINARY), "--check"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
