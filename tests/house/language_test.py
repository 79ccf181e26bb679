"""Checks the form of comments: how they open, how long their sentences are, and that every source file says what it is.

tests/house/language.json has what is still allowed, by module and kind of fault. Those numbers only shrink: a test fails when a module has more.

By hand: language_test.py --show KIND [FOLDER] prints where faults of a kind stand; --shrink writes the numbers of today where they are lower.
"""

from __future__ import annotations

import collections
import functools
import json
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Path(__file__).with_name("language.json")
TOPS = ("src", "apps", "tests", "bench")
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
MOST_WORDS = 25
# A comment opens with a noun phrase or a verb.
OPENING = re.compile(r"(Of|What|Those|Whose|That|Where)\b")
# A comment's beginning, not one inside of a string or an address.
COMMENT = re.compile(r'(?<![:"\w])//+!?<? ?(.*)$')
# A row of a table or list ends a sentence too: comments() puts a line feed there.
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z0-9`(])|\n")
ROW = re.compile(r" |[-*|] ")
COLUMNS = re.compile(r" .*\S {2,}\S")
KINDS = {
    "opening": "comments that open with Of, What, Those, Whose, That or Where: open with a noun phrase or a verb",
    "long": f"sentences of more than {MOST_WORDS} words in comments: split them",
}


def module(path: Path) -> str:
    """The two folders that a file is counted under."""
    return "/".join(path.parent.parts[:3] if path.parts[1] == "backend" else path.parent.parts[:2])


def code_without_strings(line: str) -> str:
    """A line whose string literals are empty, so that no // in them is a comment."""
    return re.sub(r'"(?:\\.|[^"\\])*"', '""', line)


def comments(text: str) -> list[tuple[int, str]]:
    """Every comment of a file, as its first line's number and its words. Full lines that follow each other are one.

    An indented line is a row of a table; lines that are indented further belong to it, but those with columns of their own."""
    found: list[tuple[int, str]] = []
    goes_on = False
    row = 0
    for number, line in enumerate(text.splitlines(), 1):
        match = COMMENT.search(code_without_strings(line))
        if not match:
            goes_on = False
            continue
        whole_line = line.lstrip().startswith("//")
        words = match[1].strip()
        indent = len(match[1]) - len(match[1].lstrip())
        is_row = bool(ROW.match(match[1]))
        if whole_line and goes_on and words:
            ends = indent <= row or bool(COLUMNS.match(match[1])) if row else is_row
            row = (max(indent, 1) if is_row else 0) if ends else row
            found[-1] = found[-1][0], f"{found[-1][1]}{chr(10) if ends else ' '}{words}"
        else:
            found.append((number, words))
            row = max(indent, 1) if is_row else 0
        goes_on = whole_line and bool(words)
    return found


def faults_in(name: str, text: str) -> list[tuple[str, str]]:
    """Every fault of a file, as its kind and its place."""
    found = []
    for number, words in comments(text):
        if words.startswith(("NOLINT", "clang-format", "---")):
            continue
        if OPENING.match(words):
            found.append(("opening", f"{name}:{number}: {words[:100]}"))
        for sentence in SENTENCE_END.split(words):
            if sum(bool(re.search(r"\w", word)) for word in sentence.split()) > MOST_WORDS:
                found.append(("long", f"{name}:{number}: {sentence[:100]}"))
    return found


def opening_fault(name: str, text: str) -> str:
    """The fault of a source's first line, which says what the file is; empty without one."""
    if not text.startswith("//"):
        return f"{name}: no first line that says what it is"
    line = comments(text)[0][1]
    few = sum(bool(re.search(r"\w", word)) for word in line.split()) < 3
    return f"{name}: says too little: {line[:80]}" if few else ""


@functools.cache
def faults() -> dict[tuple[str, str], list[str]]:
    """The faults of all sources, by kind and module."""
    found = collections.defaultdict(list)
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                short = path.relative_to(ROOT)
                for kind, place in faults_in(str(short), path.read_text(errors="replace")):
                    found[kind, module(short)].append(place)
    return found


class LanguageTest(unittest.TestCase):
    """The numbers hold, and the rules find what they should."""

    def test_no_module_has_more_faults_than_it_had(self) -> None:
        limits = json.loads(LIMITS.read_text())
        more = [f"{name}: {len(places)} {KINDS[kind]}; {limits[kind].get(name, 0)} are allowed. See {Path(__file__).name} --show {kind} {name}"
                for (kind, name), places in faults().items() if len(places) > limits[kind].get(name, 0)]
        self.assertEqual(more, [], "\n" + "\n".join(more))

    def test_every_source_says_what_it_is(self) -> None:
        sources = [path for top in TOPS for path in sorted((ROOT / top).rglob("*")) if path.suffix in {".cc", ".cu"}]
        self.assertGreater(len(sources), 900)
        silent = [fault for path in sources if (fault := opening_fault(str(path.relative_to(ROOT)), path.read_text(errors="replace")))]
        self.assertEqual(silent, [], "\n" + "\n".join(silent))
        self.assertEqual(opening_fault("src/a.cc", "// Ring of pinned pieces.\n#include <a>\n"), "")
        self.assertIn("no first line", opening_fault("src/a.cc", "#include <a>\n// Ring of pinned pieces.\n"))
        self.assertIn("too little", opening_fault("src/a.cc", "// Ring.\n"))

    def test_limits_name_modules_that_exist(self) -> None:
        limits = json.loads(LIMITS.read_text())
        self.assertEqual(set(limits), {"about", *KINDS})
        self.assertEqual([name for kind in KINDS for name in limits[kind] if not (ROOT / name).is_dir()], [])

    def test_rows_of_a_table_are_sentences(self) -> None:
        few = "word " * 15
        table = f"// {few}\n//   {few}\n//   {few}\n//     a  {few}\n// {few}\n//   - {few}\n//     {few}\n//   - {few}\n"
        self.assertEqual(comments(table)[0][1].count("\n"), 6)
        self.assertEqual(len(faults_in("src/x/a.h", table)), 1, "one row has two lines")

    def test_rules_find_what_they_should(self) -> None:
        text = ('int a;  // Of the rows, the last.\n// Rows of a page. What is behind them\n// is free.\nconst char* b = "// What";\n'
                "// Whose is it\n\n// Thatched roofs are fine.\n// " + "word " * 26 + "\n")
        self.assertEqual([kind for kind, _ in faults_in("src/x/a.h", text)], ["opening", "opening", "long"])
        self.assertEqual(comments("// One\n// two\nint a;  // three\n// four\n"), [(1, "One two"), (3, "three"), (4, "four")])


def main() -> None:
    """As a test, or by hand."""
    if "--show" in sys.argv:
        kind, *folder = sys.argv[sys.argv.index("--show") + 1:]
        for (found, name), places in faults().items():
            if found == kind and name.startswith(folder[0] if folder else ""):
                print("\n".join(places))
    elif "--shrink" in sys.argv:
        old = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
        limits = {"about": "Faults in the form of comments that are left, by kind and module: see language_test.py. Numbers only shrink."}
        for kind in KINDS:
            now = {name: len(places) for (found, name), places in sorted(faults().items()) if found == kind}
            limits[kind] = {name: min(count, old.get(kind, {}).get(name, count)) for name, count in now.items()}
        LIMITS.write_text(json.dumps(limits, indent=1) + "\n")
    else:
        unittest.main()


if __name__ == "__main__":
    main()
