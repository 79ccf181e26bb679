"""Checks that the documents agree with the tree: links resolve, environment variables and decisions are listed, and pictures are those of
their data. No committed file names a directory of one machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE_SUFFIXES = {".h", ".cc", ".py", ".cmake", ".txt", ".md", ".json", ".sh", ".toml"}
# Documents that people read; their sentences are short.
MAIN_DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/*.md", "docs/clients/*.md", "docs/decisions/*.md", "docs/serving/*.md", "docs/cuda/overview.md",
                  "docs/cuda/fusion.md", "docs/cuda/numerics.md"]
MOST_BYTES, MOST_BYTES_OF_A_PAGE = 330 * 1024, 12_000
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
        # A series of pages numbers its sections through: "model.md 6.3" may stand in model-layers.md.
        pages = files("docs/specification/*.md")
        sections = {first.name: {number for page in pages if page.stem == first.stem or page.stem.startswith(first.stem + "-")
                                 for number in re.findall(r"^#+ (\d+(?:\.\d+)*)\.? ", page.read_text(), flags=re.MULTILINE)}
                    for first in pages}
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
            used |= set(re.findall(r'(?:getenv|Number|Switch|Choice|Environment|StatePath)\(\s*"([A-Z0-9_]+)"', path.read_text()))
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

    def test_pages_are_short(self) -> None:
        """docs/ is to be read: use, design and limits. History and figures are in bench/*/HISTORY.md and bench/figures.json."""
        sizes = {str(page.relative_to(ROOT)): len(page.read_bytes()) for page in files("docs/**/*.md")}
        self.assertGreater(len(sizes), 60)
        self.assertEqual({name: size for name, size in sizes.items() if size > MOST_BYTES_OF_A_PAGE}, {}, "split by subject, or delete")
        self.assertLessEqual(sum(sizes.values()), MOST_BYTES, "delete repetition, history and what the code says itself")

    def test_pages_have_no_history(self) -> None:
        found = []
        for page in files("docs/**/*.md"):
            found += [f"{page.relative_to(ROOT)}: {word}" for word in re.findall(r"\b20\d\d-\d\d-\d\d\b|`[0-9a-f]{7,40}`", page.read_text())]
        self.assertEqual(found, [], "dates and commits belong into bench/*/HISTORY.md")

    def test_paths_that_pages_name_exist(self) -> None:
        """In code spans: paths from the repository's root, and names of tests."""
        words = "".join(path.read_text() for path in files("**/CMakeLists.txt"))
        tests = {path.stem for path in files("src/**/*_test.*", "apps/**/*_test.*", "tests/**/*_test.*")}
        missing, seen = [], 0
        for page in files("README.md", "CONTRIBUTING.md", "docs/**/*.md"):
            for span in re.findall(r"`([^`\n]+)`", page.read_text()):
                if re.fullmatch(r"\w+_test", span):
                    seen += 1
                    missing += [f"{page.relative_to(ROOT)}: {span}"] * (span not in tests and span not in words)
                elif re.fullmatch(r"(src|apps|tests|tools|bench|packaging|python|deploy|models)/[\w./*{},<>-]+", span):
                    seen += 1
                    missing += [f"{page.relative_to(ROOT)}: {path}" for path in spelled_out(span) if not any(ROOT.glob(path))]
        self.assertGreater(seen, 150)
        self.assertEqual(missing, [])

    def test_statements_about_the_code_are_true(self) -> None:
        """Numbers and edges that a page states, beside what the sources say."""
        def count(pattern: str, path: str) -> int:
            return len(re.findall(pattern, (ROOT / path).read_text(), flags=re.MULTILINE))

        shard_ops = (ROOT / "src/ops/op_table.h").read_text().split("DSV4_FOR_EACH_SHARD_OP(V)")[1].split("\n\n")[0].count("  V(")
        counted = {
            "docs/architecture.md": {"Eight": 8, "ops are needed only where ranks": shard_ops},
            "docs/cuda/overview.md": {"at 320 launches": count(r"kMaxListLaunches = 320;", "src/backend/cuda/runtime/device_queue.h") * 320},
            "docs/speculation.md": {"seeds 22 classic mistakes": count(r'^  (?:parts|ops)\("', "tests/golden/dspark_mistakes_test.cc")},
            "docs/serving/design.md": {"rewind limit (64 tokens)": count(r"max_rewind_tokens = 64;", "src/model/runtime/model_options.h") * 64},
        }
        for page, claims in counted.items():
            text = (ROOT / page).read_text()
            self.assertEqual([words for words in claims if words not in text], [], page)
        self.assertEqual(shard_ops, 8)
        self.assertEqual([list(claims.values())[-1] for claims in counted.values()], [8, 320, 22, 64])
        mistakes = len(json.loads((ROOT / "tests/golden/mistakes.json").read_text()))
        self.assertIn(f'"measured": "{mistakes} of {mistakes}", "goal": "{mistakes}"', (ROOT / "bench/figures.json").read_text())
        self.assertIn("Only apps and capi name concrete backends", (ROOT / "docs/architecture.md").read_text())
        named = {path.relative_to(ROOT / "src").parts[0] for path in files("src/**/*.h", "src/**/*.cc")
                 if not re.search("_test|testing", path.name) and re.search(r'#include "backend/(cpu|cuda|reference)/', path.read_text(errors="replace"))}
        self.assertEqual(named, {"backend", "capi"})
        overview = (ROOT / "docs/cuda/overview.md").read_text()
        folders = {path.name for path in (ROOT / "src/backend/cuda").iterdir() if path.is_dir()}
        self.assertEqual([folder for folder in sorted(folders) if f"`{folder}/" not in overview], [], "folders that the overview leaves out")
        contributing, ci = (ROOT / "CONTRIBUTING.md").read_text(), (ROOT / ".ci/run").read_text()
        words = re.findall(r"`\./dev (\w+)", contributing.split("CI runs")[1].split("`.ci/run`")[0])
        self.assertEqual([word for word in words if f"./dev {word}" not in ci], [], "words that CI does not run")
        self.assertGreaterEqual(len(words), 3)

    def test_kernel_headers_include_no_launch_of_another_family(self) -> None:
        """docs/adding-a-kernel.md, row 2: a header includes layouts that kernels share, and no other op's launch."""
        kernels = ROOT / "src/backend/cuda/kernels"
        strangers = []
        for header in sorted(kernels.glob("*/*.h")):
            for other in re.findall(r'#include "backend/cuda/kernels/([^"]+)"', header.read_text()):
                launches = re.search(r"^\w[\w:<> ]* Launch\w*\(", (kernels / other).read_text(), flags=re.MULTILINE)
                if other.split("/")[0] != header.parent.name and launches:
                    strangers.append(f"{header.parent.name}/{header.name}: {other}")
        self.assertEqual(strangers, [])

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


def spelled_out(path: str) -> list[str]:
    """The paths that one with {a,b} and <name> stands for, as patterns."""
    path = re.sub(r"<\w+>", "*", path)
    choice = re.search(r"\{([^}]*)\}", path)
    if not choice:
        return [path]
    return [one for each in choice[1].split(",") for one in spelled_out(path[:choice.start()] + each + path[choice.end():])]


def headings(path: Path) -> set[str]:
    """The anchors a Markdown renderer makes of a file's headings."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


if __name__ == "__main__":
    unittest.main()
