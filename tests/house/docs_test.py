"""Checks that the documents agree with the tree: links resolve, environment variables and decisions are listed, pictures
are those of their data, and no committed file names a directory of somebody's machine."""

from __future__ import annotations

import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE_SUFFIXES = {".h", ".cc", ".py", ".cmake", ".txt", ".md", ".json", ".sh", ".toml"}
# Those that people read; their sentences are short.
MAIN_DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/*.md", "docs/clients/*.md", "docs/decisions/*.md", "docs/cuda/overview.md", "docs/cuda/fusion.md",
                  "docs/cuda/numerics.md"]
# Built as pieces, so that this file is not its own finding.
MACHINE_PATHS = re.compile("(?<![\\w.])/(" + "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me"]) + ")/[a-z]")


def files(*patterns: str) -> list[Path]:
    """Files of the repository by pattern, without builds, environments and other hidden folders."""
    found = (path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") or part == "build"
                                                    for part in path.relative_to(ROOT).parts[:-1]))


class DocsTest(unittest.TestCase):
    """One test per promise."""

    def test_links_resolve(self) -> None:
        documents = files("*.md", "docs/**/*.md", "models/**/*.md", "tools/**/*.md", "tests/**/*.md", "bench/**/*.md",
                          "deploy/**/*.md")
        self.assertGreater(len(documents), 8)
        broken = []
        for document in documents:
            text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                path = (document.parent / name) if name else document
                if not path.exists():
                    broken.append(f"{document.relative_to(ROOT)}: {target}")
                elif anchor and anchor not in headings(path):
                    broken.append(f"{document.relative_to(ROOT)}: {target} (no such heading)")
        self.assertEqual(broken, [])

    def test_documents_that_the_code_names_exist(self) -> None:
        missing = []
        for path in files("src/**/*", "apps/**/*", "tools/**/*.py", "bench/**/*"):
            if path.suffix in CODE_SUFFIXES:
                missing += [f"{path.relative_to(ROOT)}: {name}"
                            for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(errors="replace"))
                            if not (ROOT / name).exists()]
        self.assertEqual(missing, [])

    def test_cited_sections_exist(self) -> None:
        sections = {page.name: set(re.findall(r"^#+ (\d+(?:\.\d+)*)\.? ", page.read_text(), flags=re.MULTILINE))
                    for page in files("docs/specification/*.md")}
        missing, cited = [], 0
        for path in files("src/**/*", "apps/**/*", "tests/**/*", "tools/**/*.py", "docs/**/*.md"):
            if path.suffix not in {*CODE_SUFFIXES, ".cu", ".cuh"}:
                continue
            for page, number in re.findall(r"\b([a-z-]+\.md) (?:sections? )?(\d+(?:\.\d+)*)", path.read_text(errors="replace")):
                cited += page in sections
                if page == "architecture.md" or (page in sections and number not in sections[page]):
                    missing.append(f"{path.relative_to(ROOT)}: {page} {number}")
        self.assertGreater(cited, 40)
        self.assertEqual(missing, [])

    def test_environment_variables_are_listed(self) -> None:
        used = set()
        for path in files("src/**/*.cc", "src/**/*.h", "apps/**/*.cc", "apps/**/*.h", "bench/**/*.cc"):
            used |= set(re.findall(r'(?:getenv|Number|Environment|StatePath)\(\s*"([A-Z0-9_]+)"', path.read_text()))
        table = (ROOT / "docs/environment-variables.md").read_text()
        listed = set(re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE))
        self.assertEqual(used, listed)

    def test_labels_are_listed(self) -> None:
        used = {"unit"}  # The default of dsv4_test().
        for path in files("src/**/CMakeLists.txt", "apps/**/CMakeLists.txt", "tests/**/CMakeLists.txt"):
            used |= set(re.findall(r"\bLABELS? ([a-z]+)", path.read_text()))
        listed = set(re.findall(r"^\| `([a-z]+)` \|", (ROOT / "docs/testing.md").read_text(), flags=re.MULTILINE))
        self.assertEqual(used, listed)

    def test_decisions_are_listed(self) -> None:
        pages = {path.name for path in files("docs/decisions/0*.md")}
        listed = set(re.findall(r"\((0\d+[^)]*\.md)\)", (ROOT / "docs/decisions/README.md").read_text()))
        self.assertTrue(pages)
        self.assertEqual(pages, listed)

    def test_no_machine_paths(self) -> None:
        found = []
        for path in files("**/*"):
            if path.suffix not in CODE_SUFFIXES and path.name not in {"dev", "run"}:
                continue
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if MACHINE_PATHS.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
        self.assertEqual(found, [])

    def test_pictures_and_figures_are_those_of_their_data(self) -> None:
        drawn = subprocess.run([sys.executable, ROOT / "tools/draw_pictures.py", "--check"], capture_output=True, text=True,
                               check=False)
        self.assertEqual((drawn.returncode, drawn.stdout), (0, ""), drawn.stderr)

    def test_readme_is_short(self) -> None:
        self.assertLess(len((ROOT / "README.md").read_text().splitlines()), 120)

    def test_sentences_of_main_documents_are_short(self) -> None:
        long = []
        pages = files(*MAIN_DOCUMENTS)
        self.assertGreater(len(pages), 50)
        for page in pages:
            for sentence in sentences(page.read_text()):
                words = [word for word in sentence.split() if re.search(r"\w", word)]
                if len(words) > 25:
                    long.append(f"{page.relative_to(ROOT)}: {len(words)} words, 25 are allowed: {sentence}")
        self.assertEqual(long, [])
        self.assertEqual(sentences("# Title\n\nOne two\nthree. Four: *five*.\n\n- six\n- [seven](x.md) `a b`\n\n| no | table |\n"),
                         ["One two three.", "Four:", "*five*.", "six", "seven code"])

    def test_cuda_pages_are_short(self) -> None:
        pages = files("docs/cuda/*.md")
        self.assertGreaterEqual(len(pages), 4)
        for page in pages:
            self.assertLessEqual(len(page.read_bytes()), 8192, page)

    def test_no_link_stands_twice_in_a_row(self) -> None:
        doubled = []
        for document in files("*.md", "docs/**/*.md"):
            doubled += [f"{document.relative_to(ROOT)}: {found[0]}"
                        for found in re.finditer(r"(\[[^\]]*\]\([^)]*\)),? \1", document.read_text())]
        self.assertEqual(doubled, [])

    def test_glossary_is_short(self) -> None:
        self.assertLessEqual(len((ROOT / "docs/glossary.md").read_text().splitlines()), 30)

    def test_license_is_complete(self) -> None:
        text = (ROOT / "LICENSE").read_text()
        self.assertIn("Apache License", text)
        self.assertIn("END OF TERMS AND CONDITIONS", text)


def sentences(text: str) -> list[str]:
    """The sentences of paragraphs and list items; tables, headings and code are none. Code in a sentence is one word."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    blocks: list[list[str]] = [[]]
    for line in map(str.strip, text.splitlines()):
        item = re.match(r"([-*]|\d+\.) ", line)
        if not line or item or line[0] in "#|!":
            blocks.append([])
        if line and line[0] not in "#|!":
            blocks[-1].append(line[item.end():] if item else line)
    found = []
    for block in filter(None, map(" ".join, blocks)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", block))
        found += re.split(r"(?<=[.!?:;])[\"*)]*\s+(?=[\"*(A-Z0-9]|code)", plain)
    return found


def headings(path: Path) -> set[str]:
    """The anchors a Markdown renderer makes of a file's headings."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


if __name__ == "__main__":
    unittest.main()
