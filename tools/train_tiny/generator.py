"""The training mixture: seeded documents, tokenized and packed into rows.

A row is `length + 2` token ids (two more than positions, for the next-token and the MTP target), once as the model sees
them and once as it should predict them, with the loss weight of each token. Rows begin at a document's start; a document that does not fit is cut at the row's end, never at its start.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from chat import ASSISTANT, BOS, EOS, V41, Message, attach_tools, render
from dialogues import dialogue, named, place_note
from facts import load_countries, raw_fact
from lexicon import Lexicon
from recall import Segment, haystack, lookup, records, repeat
from stories import story
from tooluse import tool_dialogue

# share of tokens per kind of document; the second column is used for long rows
MIXTURE = {"corpus": (0.19, 0.22), "raw_fact": (0.09, 0.07), "dialogue": (0.18, 0.13), "story": (0.02, 0.01),
           "tools": (0.14, 0.12), "records": (0.13, 0.07), "lookup": (0.14, 0.12), "repeat": (0.02, 0.01),
           "haystack": (0.09, 0.25)}
# mean length in tokens, to turn shares of tokens into shares of documents
_MEAN_LENGTH = {"corpus": (520, 1550), "raw_fact": (23, 23), "dialogue": (50, 50), "story": (91, 91),
                "tools": (570, 570), "records": (323, 323), "lookup": (497, 1900), "repeat": (517, 2270),
                "haystack": (590, 1520)}
_PROMPT_WEIGHT = 0.1
# Questions stand at a document's end, and a row's end cuts: what asks is made as long as the row has room. This share of long rows
# begins with a text as long as the row, or nothing far away would ever be asked for.
_WHOLE_ROWS = 0.5
_LEAST_ROOM = 256
# the corpus is seen many times: this share of its input tokens is replaced at random, the targets stay
_NOISE = 0.08


class Generator:
    """Draws documents. Two generators with one seed draw the same ones."""

    def __init__(self, data: Path, tokenizer: Tokenizer, seed: int, revision: str = "v4") -> None:
        self.revision = revision
        self.rng = random.Random(seed)
        self.tokenizer = tokenizer
        self.countries = load_countries(data)
        self.lexicon = Lexicon.from_corpus(data / "corpus.jsonl.gz")
        self.texts = load_texts(data, "train")
        self.assistant = tokenizer.token_to_id(ASSISTANT)
        self.eos = tokenizer.token_to_id(EOS)

    def _chat(self, messages: list[Message], tools: list[dict] | None = None) -> str:
        mode = "thinking" if self.rng.random() < 0.45 else "chat"
        effort = "max" if mode == "thinking" and self.rng.random() < 0.04 else None
        if self.revision == V41 and mode == "thinking" and self.rng.random() < 0.3:
            effort = self.rng.choice(("low", "max", self.rng.randint(1, 100)))
        return named(render(attach_tools(messages, tools), mode, effort=effort, revision=self.revision), self.revision)

    def _raw(self, text: str) -> str:
        return (BOS if self.rng.random() < 0.5 else "") + text + EOS

    def _crop(self, characters: int) -> str:
        """A stretch of one corpus document, beginning at a sentence or line where there is one."""
        text = self.rng.choice(self.texts)
        start = self.rng.randint(0, max(0, len(text) - characters // 2))
        for mark in (". ", "\n"):
            found = text.find(mark, start)
            if start and 0 <= found < start + 300:
                start = found + len(mark)
                break
        return text[start:start + characters]

    def haystack(self, room: int, needles: int, pieces: int = 1) -> str:
        """Questions on `needles` statements in a text of at most `room` characters, of at most so many pieces of the corpus."""
        rng, filler = self.rng, ""
        if rng.random() < 0.8:
            while pieces and len(filler) < room - 100:
                filler, pieces = f"{filler} {self._crop(room - len(filler))}".strip(), pieces - 1
        else:
            filler = " ".join(place_note(rng) for _ in range(room // 45 + 1))
        messages, _ = haystack(rng, self.lexicon, filler, needles)
        return self._chat(messages)

    def whole_row(self, size: int) -> str:
        """A haystack of nearly `size` tokens, at most as many."""
        needles, room, state = self.rng.randint(1, 14), 3 * size, self.rng.getstate()
        while True:
            self.rng.setstate(state)
            text = self.haystack(room, needles, 20)
            count = len(self.tokenizer.encode(text).ids)
            if count <= size:
                return text
            room = min(int(room * size / count), room - 60)

    def document(self, kind: str, length: int) -> str | list[Segment]:
        """One document of a kind; `length` is what the row has room for, in tokens."""
        rng = self.rng
        if kind == "corpus":
            characters = rng.randint(300, 3 * length)
            text = self._crop(characters)
            return (BOS if rng.random() < 0.5 else "") + text
        if kind == "raw_fact":
            return self._raw(raw_fact(rng, self.countries))
        if kind == "story":
            return self._raw(story(rng))
        if kind == "dialogue":
            return self._chat(dialogue(rng, self.countries, self.lexicon))
        if kind == "tools":
            messages, tools, _ = tool_dialogue(rng, self.countries, self.lexicon)
            return self._chat(messages, tools)
        if kind == "records":
            raw, messages = records(rng, self.lexicon)
            return self._chat(messages) if messages else self._raw(raw)
        if kind == "lookup":
            return lookup(rng, self.lexicon, rng.randint(6, max(8, length // 16)))
        if kind == "repeat":
            return repeat(rng, self.lexicon, rng.randint(20, length // 4))
        # a needle's text leaves room for the questions; three characters are about one token
        return self.haystack(rng.randint(60, max(61, int(2.9 * length) - 500)), rng.randint(1, 14))

    def encode(self, text: str | list[Segment]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids, and the loss weight of each: full for answers and raw text, little for prompts."""
        if isinstance(text, list):
            pieces = [self.tokenizer.encode(t).ids for t, _ in text]
            weights = [np.full(len(p), w, dtype=np.float16) for p, (_, w) in zip(pieces, text)]
            return np.array([i for p in pieces for i in p], dtype=np.uint16), np.concatenate(weights)
        ids = np.array(self.tokenizer.encode(text).ids, dtype=np.uint16)
        if self.assistant not in ids:
            return ids, np.ones(len(ids), dtype=np.float16)
        weights = np.full(len(ids), _PROMPT_WEIGHT, dtype=np.float16)
        for start in np.flatnonzero(ids == self.assistant):
            ends = np.flatnonzero(ids[start:] == self.eos)
            end = start + (ends[0] if len(ends) else len(ids))
            weights[start + 2:end + 1] = 1.0
        return ids, weights

    def rows(self, length: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Endless packed rows: ids [2, length + 2] (seen, wanted) and weights [length + 2]."""
        column = int(length >= 2048)
        kinds = list(MIXTURE)
        odds = [MIXTURE[k][column] / _MEAN_LENGTH[k][column] for k in kinds]
        size = length + 2
        vocabulary = self.tokenizer.get_vocab_size()
        noise = np.random.default_rng(self.rng.randrange(2**32))
        while True:
            ids = np.zeros((2, size), dtype=np.uint16)
            weights = np.zeros(size, dtype=np.float16)
            filled = 0
            while filled < size:
                kind = self.rng.choices(kinds, odds)[0]
                if column and not filled and self.rng.random() < _WHOLE_ROWS:
                    kind, text = "haystack", self.whole_row(size)
                else:
                    text = self.document(kind, max(_LEAST_ROOM, size - filled) if kind in ("lookup", "haystack") else length)
                piece, weight = self.encode(text)
                take = min(len(piece), size - filled)
                ids[:, filled:filled + take] = piece[:take]
                if kind == "corpus":
                    replaced = noise.random(take) < _NOISE
                    ids[0, filled:filled + take][replaced] = noise.integers(0, vocabulary, int(replaced.sum()))
                weights[filled:filled + take] = weight[:take]
                # what a row's first document or the one before says nothing about its successor's first token
                if filled:
                    weights[filled] = 0.0
                filled += take
            yield ids, weights


def load_texts(data: Path, split: str) -> list[str]:
    """Corpus documents of a split."""
    with gzip.open(data / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        documents = [json.loads(line) for line in file]
    return [d["text"] for d in documents if d["split"] == split]
