"""Checks that the field's words have displaced ours: tests/house/vocabulary.json lists old words with what to say instead. None of them
stands in the sources or the documents.

By hand: vocabulary_test.py --show WORD prints where a word stands.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("vocabulary.json")
SCOPES = {
    "src": [f"{folder}/**/*{suffix}" for folder in ("src", "apps") for suffix in (".h", ".cc", ".cu", ".cuh")],
    "docs": ["README.md", "CONTRIBUTING.md", "docs/**/*.md"],
}


@functools.cache
def texts(scope: str) -> dict[str, str]:
    """Every file of a scope."""
    paths = sorted(path for glob in SCOPES[scope] for path in ROOT.glob(glob))
    return {str(path.relative_to(ROOT)): path.read_text(errors="replace") for path in paths}


def occurrences(word: dict, scope: str) -> list[str]:
    """Every place of `word`, as file:line: text."""
    pattern, only = re.compile(word["pattern"], re.IGNORECASE), re.compile(word.get("only", ""))
    found = []
    for name, text in texts(scope).items():
        if not only.match(name):
            continue
        for match in pattern.finditer(text):
            line = text[text.rfind("\n", 0, match.start()) + 1:].partition("\n")[0]
            found.append(f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {line.strip()}")
    return found


class VocabularyTest(unittest.TestCase):
    """None is left, and each pattern finds what it should."""

    def test_no_old_word_is_left(self) -> None:
        left = []
        for word in json.loads(LIST.read_text())["words"]:
            for scope in SCOPES:
                if found := occurrences(word, scope):
                    left += [f"'{word['word']}' stands {len(found)} times in {scope}. Say: {word['say']}. It stands in:", *found[:60]]
        self.assertEqual(left, [], "\n" + "\n".join(left))

    def test_every_scope_has_files(self) -> None:
        self.assertGreater(len(texts("src")), 800)
        self.assertGreater(len(texts("docs")), 30)

    def test_patterns_find_their_words(self) -> None:
        examples = {"copy engine": "by the Copy Engine", "processor": "132 processors", "imagined": "IsImagined(group)",
                    "some tens": "for some tens of tokens", "one ahead": "steps run ahead", "door": "comm::Door",
                    "who": "whoever waits"}
        for word in json.loads(LIST.read_text())["words"]:
            if word["word"] in examples:
                self.assertRegex(examples[word["word"]], re.compile(word["pattern"], re.IGNORECASE))
            self.assertNotRegex("processor time, whole, shoulder, joined threads", re.compile(word["pattern"], re.IGNORECASE))


def main() -> None:
    """As a test, or by hand."""
    vocabulary = json.loads(LIST.read_text())
    if "--show" in sys.argv:
        for word in vocabulary["words"]:
            if word["word"] == sys.argv[-1]:
                print("\n".join(occurrences(word, "src") + occurrences(word, "docs")))
    else:
        unittest.main()


if __name__ == "__main__":
    main()
