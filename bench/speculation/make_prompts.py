"""Makes prompts.jsonl: 50 prompts whose answers edit or quote what the prompt has, and 40 that have nothing to quote.

The answers of the first are given, since models/tiny cannot edit a file: the bench makes the model say them. What a suffix drafter finds
depends on the text alone, so this is what a model sees that edits without a fault. The texts are this repository's own.

  python3 bench/speculation/make_prompts.py > bench/speculation/prompts.jsonl
"""

import json
import pathlib
import random
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ("src/base/status.h", "src/kv/paged_store.h", "src/engine/scheduler.cc", "src/speculation/suffix_automaton.h", "src/sampling/choice.h",
           "src/chat/stop_filter.cc", "python/dsv4/__init__.py", "tools/train_tiny/muon.py", "src/io/output_file.cc", "src/chat/utf8.cc")
PROSE = ("docs/speculation.md", "docs/glossary.md", "docs/serving.md", "docs/testing.md", "docs/troubleshooting.md")
TALK = ("What is the capital of {}?", "Tell me a story about a {}.")
COUNTRIES = ("France", "Spain", "Italy", "Japan", "Peru", "Kenya", "Norway", "Chile", "Egypt", "India", "Cuba", "Greece", "Poland", "Mali", "Fiji",
             "Nepal", "Ghana", "Iran", "Oman", "Laos")
THINGS = ("bottle", "lamp", "key", "boat", "hat", "coin", "bell", "book", "rope", "drum", "stone", "ring", "map", "cup", "chair", "knife", "clock",
          "basket", "flute", "mirror")


def piece(path, rng, lines):
    """Some lines of a file, from a paragraph's beginning."""
    text = [line for line in (ROOT / path).read_text(encoding="utf-8").split("\n") if len(line) < 160]
    begin = rng.randrange(max(1, len(text) - lines))
    return "\n".join(text[begin : begin + lines]).strip("\n")


def rename(text, rng):
    """Another name for a word of the text, everywhere."""
    words = sorted({word for word in re.findall(r"[A-Za-z_]{5,}", text) if len(re.findall(rf"\b{word}\b", text)) > 1}) or re.findall(r"[A-Za-z_]{5,}", text)
    word = rng.choice(words)
    new = rng.choice(("renamed_value", "OtherName", "second", "total_count"))
    return f"Rename {word} to {new} in this text:", re.sub(rf"\b{word}\b", new, text)


def insert(text, rng):
    """A line more."""
    lines = text.split("\n")
    at = rng.randrange(1, len(lines))
    new = rng.choice(("// Checked by hand.", "TODO: say why.", "  return false;", "See the table above."))
    return f"Add the line '{new}' behind line {at}:", "\n".join(lines[:at] + [new] + lines[at:])


def remove(text, rng):
    """A line less."""
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    return f"Delete line {at + 1}:", "\n".join(lines[:at] + lines[at + 1 :])


def quote(text, rng):
    """A part as it is."""
    lines = text.split("\n")
    begin = rng.randrange(max(1, len(lines) // 2))
    return f"Quote this text from line {begin + 1} on:", "\n".join(lines[begin:])


def main():
    rng = random.Random(1)
    for i in range(50):
        kind, change = (("edit", rename), ("edit", insert), ("edit", remove), ("quote", quote), ("quote", quote))[i % 5]
        files = SOURCES if i % 3 else PROSE
        text = piece(files[i % len(files)], rng, rng.randint(12, 24))
        while len(text.split("\n")) < 4:
            text = piece(rng.choice(SOURCES), rng, 16)
        question, answer = change(text, rng)
        print(json.dumps({"kind": kind, "messages": [{"role": "user", "content": f"{question}\n\n{text}"}], "answer": answer}))
    for kind, question, words in (("questions", TALK[0], COUNTRIES), ("stories", TALK[1], THINGS)):
        for word in words:
            print(json.dumps({"kind": kind, "messages": [{"role": "user", "content": question.format(word)}]}))


if __name__ == "__main__":
    main()
