"""V4.1's n-gram tables: the class of each token id, and the rows that the tokens so far lead to.

Ids whose texts differ in case, accents or blanks alone share a class. Classes are numbered in the order of their first ids.
"""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

# Unicode's White_Space; Python also strips U+001C to U+001F.
_WHITE = "".join(chr(c) for c in range(0x3001) if chr(c).isspace() and not 0x1C <= c <= 0x1F)


def _bytes_of() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}


def _key(token: str, bytes_of: dict[str, int]) -> str:
    text = token
    if all(c in bytes_of for c in token):
        text = bytes(bytes_of[c] for c in token).decode("utf-8", errors="replace")
    if "\ufffd" in text:
        return token
    plain = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    plain = "".join(c.lower() for c in plain if not unicodedata.category(c).startswith("M"))
    pieces = []
    for c in plain:
        c = " " if c in " \t\r\n" else c
        if c != " " or pieces[-1:] != [" "]:
            pieces.append(c)
    plain = "".join(pieces)
    return plain if plain == " " else plain.strip(_WHITE) or text


def token_classes(tokenizer: Path, count: int) -> list[int]:
    """Of the ids 0 to count - 1 of a tokenizer.json."""
    layout = json.loads(tokenizer.read_text(encoding="utf-8"))
    strings = {i: s for s, i in layout["model"]["vocab"].items()} | {t["id"]: t["content"] for t in layout["added_tokens"]}
    bytes_of, numbers = _bytes_of(), {}
    return [numbers.setdefault(_key(strings[i], bytes_of), len(numbers)) for i in range(count)]


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % d for d in range(2, int(number**0.5) + 1))


def table_primes(vocab_size: int, sizes: int, heads: int, tables: int) -> list[list[list[int]]]:
    """Rows of each head of each n-gram size of each table: primes from `vocab_size` on, none of them twice."""
    used: set[int] = set()
    primes = []
    for _ in range(tables):
        primes.append([])
        for _ in range(sizes):
            candidate, found = vocab_size - 1, []
            while len(found) < heads:
                candidate += 1
                if candidate not in used and _is_prime(candidate):
                    used.add(candidate)
                    found.append(candidate)
            primes[-1].append(found)
    return primes
