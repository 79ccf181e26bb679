"""Cleans the shared corpus into documents: one JSON object a line, `{"source", "split", "text"}`, gzip.

Cleaning: NFC, hard line breaks joined, markup and URLs dropped, repeated paragraphs removed, then paragraphs are glued
into documents of a few thousand characters. One document in a hundred (by hash) goes to the `held_out` split.

  python3 corpus.py --corpus ../shared/corpus --output .train/corpus.jsonl.gz
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

# characters of text kept per source: the languages of the list are uneven, the small model should not be
_LIMITS = {"austen": 5_000_000, "moby-dick": 2_000_000, "world-english-bible": 5_000_000,
           "state-of-the-union": 11_000_000, "jargon": 2_000_000, "devils-dictionary": 500_000,
           "python-3.11-docs": 5_000_000, "postgresql-15-docs": 5_000_000, "world-factbook-2015": 2_000_000,
           "wordnet31": 12_000_000}
# technical manuals and the factbook are mostly tables and menus: only their prose is wanted
_PROSE_ONLY = {"python-3.11-docs": 60, "postgresql-15-docs": 60, "world-factbook-2015": 160}
_DOCUMENT_CHARS = 12_000
_URL = re.compile(r"\(?https?://\S+\)?")


def _paragraphs(name: str, text: str) -> Iterator[str]:
    if name == "wordnet31":
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        for start in range(0, len(lines), 8):
            yield "\n".join(lines[start:start + 8])
        return
    for block in re.split(r"\n\s*\n", text.replace("\r", "")):
        joined = " ".join(line.strip() for line in block.split("\n") if line.strip())
        joined = re.sub(r"\s+", " ", _URL.sub("", joined)).strip()
        joined = re.sub(r"[{}¶]", "", joined)
        if not joined:
            continue
        minimum = _PROSE_ONLY.get(name, 0)
        if minimum:
            letters = sum(c.isalpha() or c == " " for c in joined)
            if len(joined) < minimum or letters < 0.8 * len(joined) or joined[-1] not in ".:;!?":
                continue
        yield joined


def documents(name: str, text: str) -> Iterator[str]:
    """Cleaned documents of one source file."""
    seen: set[str] = set()
    parts: list[str] = []
    size = total = 0
    # the last novels of a collection matter as much as the first: long sources are thinned, not cut
    keep_every = max(1.0, len(text) / _LIMITS[name])
    position = 0.0
    for paragraph in _paragraphs(name, unicodedata.normalize("NFC", text)):
        key = paragraph[:200]
        if key in seen and len(paragraph) > 30:
            continue
        seen.add(key)
        parts.append(paragraph)
        size += len(paragraph)
        if size >= _DOCUMENT_CHARS:
            position += 1
            if position >= keep_every:
                position -= keep_every
                yield "\n".join(parts) if name == "wordnet31" else "\n\n".join(parts)
                total += size
            parts, size = [], 0
        if total > _LIMITS[name]:
            return
    if parts:
        yield "\n".join(parts) if name == "wordnet31" else "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(arguments.output, "wt", encoding="utf-8", compresslevel=6) as out:
        for name in _LIMITS:
            with gzip.open(arguments.corpus / f"{name}.txt.gz", "rt", encoding="utf-8", errors="replace") as source:
                raw = source.read()
            sizes = {"train": 0, "held_out": 0}
            for text in documents(name, raw):
                digest = hashlib.sha256(text.encode()).digest()
                split = "held_out" if digest[0] * 256 + digest[1] < 655 else "train"
                sizes[split] += len(text)
                out.write(json.dumps({"source": name, "split": split, "text": text}, ensure_ascii=False) + "\n")
            print(f"{name}: {sizes['train']} characters to train on, {sizes['held_out']} held out")


if __name__ == "__main__":
    main()
