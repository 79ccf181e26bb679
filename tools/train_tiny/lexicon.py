"""Word lists of the generator: names, objects, animals, places and the like, each split into train and evaluation halves.

`Lexicon.words` are common lower-case words found in the corpus; `definitions` are their first WordNet glosses.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


def split_words(text: str) -> list[str]:
    """A word list written as running text."""
    return text.split()


PEOPLE = split_words("Ada Alma Amir Anna Arun Asa Ben Bela Bruno Carla Carlos Cleo Clara Dana Daria David Diego Dora Edgar Ella "
          "Elias Emil Emma Erik Eva Farah Felix Fiona Frida Gina Greta Hana Hugo Ida Igor Ines Iris Ivan Jana Jonas "
          "Julia Kai Karin Karl Kira Lara Leo Lena Lina Lucas Lucia Luis Maja Malik Marco Maria Marta Max Mila Mina Mira "
          "Nadia Nico Nina Noah Nora Olga Omar Oscar Otto Paul Paula Pedro Petra Pia Quinn Rafael Ravi Rita Robin Rosa "
          "Ruben Ruth Sam Sara Selma Sofia Stefan Tara Tim Theo Tom Vera Viktor Wanda Yara Yusuf Zara Zoe")
OBJECTS = split_words("lantern key umbrella basket violin mirror kettle ladder blanket compass drum candle clock hammer bottle kite "
           "bucket saddle teapot rope needle button carpet pillow pencil wallet whistle ticket statue helmet barrel "
           "anchor trumpet chest scarf plate spoon jacket telescope notebook bicycle boat shovel ring crown cup map box "
           "bell chair table lamp book coin hat shoe glove bag letter")
ANIMALS = split_words("fox owl bear cat dog rabbit horse mouse wolf goat sheep duck hen frog turtle lion tiger whale crow swan "
           "donkey badger otter hedgehog squirrel deer goose bee snail elephant")
COLOURS = split_words("red blue green yellow white black brown grey purple orange pink golden silver")
PLACES = split_words("harbour garden forest market library station kitchen castle bridge mill tower school farm river lake island "
          "mountain valley village workshop museum theatre bakery lighthouse barn cellar attic chapel meadow orchard")
FOODS = split_words("bread soup cheese rice apple pear plum cake honey butter fish egg bean onion carrot tomato potato lemon tea milk")
JOBS = split_words("baker sailor doctor teacher farmer painter tailor miller judge nurse pilot singer writer gardener cook "
        "fisherman blacksmith carpenter shepherd merchant")
MOODS = split_words("brave kind clever lonely happy tired curious old young quiet proud gentle hungry patient lazy")
MONTHS = split_words("January February March April May June July August September October November December")
DAYS = split_words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
CITIES = split_words("Lima Oslo Rome Paris Cairo Tokyo Berlin Madrid Vienna Dublin Athens Lisbon Prague Warsaw Havana Quito Nairobi "
          "Ottawa Boston Chicago Sydney Mumbai Geneva Milan Naples Seville Porto Lyon Munich Hamburg Bergen Turin Kyoto "
          "Osaka Toronto Denver Dallas Austin Seattle Zurich")


def is_evaluation(text: str) -> bool:
    """One string in five, by hash, is kept for the evaluation and never generated for training."""
    return hashlib.sha256(text.encode()).digest()[0] < 51


@dataclass
class Lexicon:
    """Words and glosses taken from the cleaned corpus."""

    words: list[str] = field(default_factory=list)
    definitions: list[tuple[str, str]] = field(default_factory=list)

    @staticmethod
    def from_corpus(path: Path) -> Lexicon:
        """Reads `corpus.jsonl.gz` (see corpus.py)."""
        counts: Counter[str] = Counter()
        glosses: dict[str, str] = {}
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                document = json.loads(line)
                if document["split"] != "train":
                    continue
                text = document["text"]
                if document["source"] == "wordnet31":
                    for entry in text.split("\n"):
                        heads, _, gloss = entry.partition(": ")
                        gloss = gloss.split(";")[0].strip()
                        gloss = re.sub(r"\([^)]*\)", "", gloss).strip()
                        gloss = re.sub(r"\s+", " ", gloss)
                        for head in heads.split(", ")[:1]:
                            if head.isalpha() and head.islower() and 12 < len(gloss) < 70:
                                glosses.setdefault(head, gloss)
                elif document["source"] in ("austen", "moby-dick", "world-english-bible", "state-of-the-union"):
                    counts.update(re.findall(r"(?<![\w'’])[a-z]{3,9}(?![\w'’])", text))
        words = [w for w, n in counts.most_common(6000) if n >= 12][120:3600]
        known = set(words[:2600])
        definitions = sorted((w, g) for w, g in glosses.items() if w in known)
        return Lexicon(words, definitions)
