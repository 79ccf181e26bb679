"""Retrieval from context: records and questions, and needles hidden in long running text.

`lookup` and `repeat` are bare associative recall: nothing but retrieval helps there, and most of their tokens ask for it.
Without them the small model never learns to read its compressed entries. Values of one word in five, and one (name, thing) pair in five, appear in the evaluation only.
"""

from __future__ import annotations

import random

from chat import Message
from lexicon import COLOURS, OBJECTS, PEOPLE, PLACES, Lexicon, is_evaluation

Segment = tuple[str, float]  # text and its loss weight; segments meet at pre-token borders

_THINGS = ("secret word", "password", "lucky number", "room number", "code", "locker number", "magic word", "hiding place",
           "ticket number", "seat number")


def needle(rng: random.Random, lexicon: Lexicon, evaluation: bool, taken: set[str]) -> tuple[str, str, str]:
    """(statement, question, answer sentence) about a (person, thing) pair that is not in `taken`."""
    while True:
        name, thing = rng.choice(PEOPLE), rng.choice(_THINGS)
        key = f"{name}/{thing}"
        if key not in taken and is_evaluation(key) == evaluation:
            break
    taken.add(key)
    if "number" in thing or thing == "code":
        value = str(rng.randint(100, 9999))
    elif thing == "hiding place":
        value = f"the {rng.choice(COLOURS)} {rng.choice(OBJECTS)} in the {rng.choice(PLACES)}"
    else:
        value = next(w for w in rng.sample(lexicon.words, 60) if is_evaluation(w) == evaluation)
    statement = rng.choice((f"The {thing} of {name} is {value}.", f"{name}'s {thing} is {value}.",
                            f"Remember that the {thing} of {name} is {value}."))
    question = rng.choice((f"What is the {thing} of {name}?", f"What is {name}'s {thing}?",
                           f"Tell me the {thing} of {name}."))
    return statement, question, f"The {thing} of {name} is {value}."


def records(rng: random.Random, lexicon: Lexicon) -> tuple[str, list[Message]]:
    """A list of records, then questions on it: as raw text (first value) or as a dialogue (second, if not empty)."""
    taken: set[str] = set()
    items = [needle(rng, lexicon, False, taken) for _ in range(rng.randint(2, 30))]
    listed = rng.choice((" ", "\n")).join(i[0] for i in items)
    asked = rng.sample(items, min(len(items), rng.randint(2, 14)))
    if rng.random() < 0.35:
        return listed + "\n\n" + " ".join(answer for _, _, answer in asked), []
    messages: list[Message] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": listed})
        first = ""
    else:
        first = listed + "\n\n"
    for index, (_, question, answer) in enumerate(asked):
        messages.append({"role": "user", "content": (first if index == 0 else "") + question})
        messages.append({"role": "assistant", "reasoning_content": f"I look it up. {answer}", "content": answer})
    return "", messages


def haystack(rng: random.Random, lexicon: Lexicon, filler: str, needles: int, evaluation: bool = False
             ) -> tuple[list[Message], list[tuple[str, str, str]]]:
    """`needles` statements spread over `filler`, then a question on each (one question in evaluation)."""
    taken: set[str] = set()
    items = [needle(rng, lexicon, evaluation, taken) for _ in range(needles)]
    sentences = filler.split(". ")
    slots = sorted(rng.randint(0, len(sentences) - 1) for _ in items)
    parts: list[str] = []
    cursor = 0
    for slot, item in zip(slots, items):
        chunk = ". ".join(sentences[cursor:slot])
        if chunk:
            parts.append(chunk if chunk.endswith((".", "!", "?", '"')) else chunk + ".")
        parts.append(item[0])
        cursor = slot
    tail = ". ".join(sentences[cursor:])
    parts.append(tail if tail.endswith((".", "!", "?", '"')) else tail + ".")
    text = rng.choice((" ", "\n\n")).join(p for p in parts if p.strip())
    asked = rng.sample(items, len(items))
    if evaluation:
        asked = asked[:1]
    messages: list[Message] = []
    for index, (_, question, answer) in enumerate(asked):
        messages.append({"role": "user", "content": (text + "\n\n" if index == 0 else "") + question})
        if evaluation:
            break
        messages.append({"role": "assistant", "reasoning_content": f"I look for it in the text. {answer}", "content": answer})
    return messages, asked


def lookup(rng: random.Random, lexicon: Lexicon, pairs: int) -> list[Segment]:
    """`pairs` key-value records, then the same keys in another order; only the second values count."""
    words = [w for w in rng.sample(lexicon.words, min(len(lexicon.words), 3 * pairs + 20)) if not is_evaluation(w)]
    style = rng.choice(("colon", "equals", "is", "thing"))
    keys = PEOPLE if rng.random() < 0.5 and pairs <= len(PEOPLE) else words[pairs:]
    keys = rng.sample(keys, min(pairs, len(keys)))
    digits = rng.random() < 0.4
    values = [str(rng.randint(100, 9999)) if digits else w for w in words[:len(keys)]]
    thing = rng.choice(_THINGS)

    def key_text(key: str) -> str:
        return {"colon": f"{key}:", "equals": f"{key} =", "is": f"{key} is", "thing": f"The {thing} of {key} is"}[style]

    end = rng.choice((".\n", ".\n", ";\n", ".\n\n"))
    records_ = list(zip(keys, values))
    segments: list[Segment] = [(f"{key_text(k)} {v}{end}", 0.0) for k, v in records_]
    for key, value in rng.sample(records_, len(records_)):
        segments += [(key_text(key), 0.0), (f" {value}{end}", 1.0)]
    return segments


def repeat(rng: random.Random, lexicon: Lexicon, count: int) -> list[Segment]:
    """`count` random words, then the same words once more."""
    text = " ".join(rng.choice(lexicon.words) for _ in range(count)) + ".\n"
    return [(text, 0.0), (text, 1.0)]
