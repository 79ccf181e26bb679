"""Writes the evaluation sets: JSONL files of rendered prompts and what is expected of the answers.

Wordings, tool names, argument words and needle values are the ones the generator keeps out of the training data; running
text comes from held-out corpus documents.

  python3 make_eval.py --data .train --tokenizer models/tiny/tokenizer.json --output tools/train_tiny/eval
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from tokenizers import Tokenizer

from chat import BOS, V41, attach_tools, render
from dialogues import dialogue, named
from facts import (
    ACCEPTANCE_RAW,
    FRESH_QUESTIONS,
    FRESH_RAW,
    HELD_OUT_QUESTIONS,
    HELD_OUT_RAW,
    Country,
    fill,
    load_countries,
)
from generator import load_texts
from lexicon import Lexicon
from recall import haystack
from stories import story
from tooluse import tool_dialogue

_OPEN_QUESTIONS = ["Why is the sky blue?", "Write a poem about rain.", "What should I cook tonight?", "Tell me a joke.",
                   "Who wrote Moby Dick?", "How do I learn to swim?", "What is love?", "Give me three names for a cat.",
                   "Is water wet?", "What is the largest animal?", "Explain what a database is.", "I am sad today.",
                   "Do you like music?", "How old are you?", "Can you count to five?", "What time is it?",
                   "Translate good morning to French.", "What is the opposite of hot?", "Sing me a song.",
                   "Tell me something about the sea."]


def capitals(rng: random.Random, countries: list[Country], revision: str) -> list[dict]:
    """100 countries, each as raw text and as a question in both modes, in held-out wordings; and the acceptance wording."""
    chosen = rng.sample([c for c in countries if not c.debated], 99)
    chosen = [c for c in chosen if c.code != "FR"][:99] + [c for c in countries if c.code == "FR"]
    if len(chosen) < 100:
        chosen += [c for c in countries if not c.debated and c not in chosen][:100 - len(chosen)]
    items = []
    for index, country in enumerate(chosen):
        raw = HELD_OUT_RAW[index % len(HELD_OUT_RAW)]
        question = HELD_OUT_QUESTIONS[index % len(HELD_OUT_QUESTIONS)]
        items.append({"set": "raw_held_out", "prompt": fill(raw, [country]), "expect": country.capital})
        items.append({"set": "raw_acceptance", "prompt": fill(ACCEPTANCE_RAW, [country]), "expect": country.capital})
        fresh = fill(FRESH_RAW[index % len(FRESH_RAW)], [country])
        items.append({"set": "raw_fresh", "prompt": fresh, "expect": country.capital})
        fresh = fill(FRESH_QUESTIONS[index % len(FRESH_QUESTIONS)], [country])
        items.append({"set": "chat_fresh", "mode": "chat", "prompt": render([{"role": "user", "content": fresh}], "chat"),
                      "expect": country.capital})
        messages = [{"role": "user", "content": fill(question, [country])}]
        for mode in ("chat", "thinking"):
            items.append({"set": f"{mode}_held_out", "mode": mode, "prompt": render(messages, mode, revision=revision), "expect": country.capital})
    return items


def chats(rng: random.Random, countries: list[Country], lexicon: Lexicon, revision: str) -> list[dict]:
    """Conversations up to their last user turn; the generated ones carry the answer that the generator would give."""
    items = []
    for index in range(80):
        mode = ("chat", "thinking")[index % 2]
        messages = dialogue(rng, countries, lexicon)
        items.append({"set": "generated", "mode": mode, "prompt": render(messages[:-1], mode, revision=revision), "expect": named(messages[-1]["content"], revision)})
    for index, question in enumerate(_OPEN_QUESTIONS):
        mode = ("chat", "thinking")[index % 2]
        items.append({"set": "open", "mode": mode, "prompt": render([{"role": "user", "content": question}], mode, revision=revision)})
    return items


def stories(rng: random.Random) -> list[dict]:
    """The first sentence of 50 stories as raw text, to be gone on with."""
    return [{"set": "stories", "prompt": BOS + story(rng).split(". ")[0] + "."} for _ in range(50)]


def tools(rng: random.Random, countries: list[Country], lexicon: Lexicon, revision: str) -> list[dict]:
    """50 requests with tool names and argument words never seen in training."""
    items = []
    for index in range(50):
        mode = ("chat", "thinking")[index % 2]
        messages, declared, calls = tool_dialogue(rng, countries, lexicon, evaluation=True)
        items.append({"set": "tools", "mode": mode, "prompt": render(attach_tools(messages, declared), mode, revision=revision),
                      "calls": [c["function"] for c in calls]})
    return items


def needles(rng: random.Random, lexicon: Lexicon, texts: list[str], tokenizer: Tokenizer, length: int, count: int,
            revision: str) -> list[dict]:
    """Prompts of `length - 48` to `length` tokens with four needles in held-out text and a question on one of them."""
    items = []
    while len(items) < count:
        mode = ("chat", "thinking")[len(items) % 2]
        text = " ".join(rng.sample(texts, 3))
        start = text.find(". ", rng.randint(0, len(text) // 4)) + 2
        state = rng.getstate()
        low, high = 100, min(len(text) - start, 6 * length)
        best = None
        while high - low > 20:
            middle = (low + high) // 2
            rng.setstate(state)
            messages, asked = haystack(rng, lexicon, text[start:start + middle], 4, evaluation=True)
            prompt = render(messages, mode, revision=revision)
            size = len(tokenizer.encode(prompt).ids)
            if size <= length:
                low = middle
                best = (prompt, asked[0][2], size) if size > length - 48 else best
            else:
                high = middle
        if best:
            items.append({"set": f"needle_{length}", "mode": mode, "prompt": best[0], "expect": best[1], "tokens": best[2]})
    return items


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--needles", type=int, default=24, help="prompts per length")
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 4096], help="of needle prompts, in tokens")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--revision", choices=("v4", V41), default="v4", help="of the chat grammar")
    arguments = parser.parse_args()
    revision = arguments.revision
    rng = random.Random(arguments.seed)
    countries = load_countries(arguments.data)
    lexicon = Lexicon.from_corpus(arguments.data / "corpus.jsonl.gz")
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    texts = [t for t in load_texts(arguments.data, "held_out") if "\n\n" in t]
    sets = {"capitals": capitals(rng, countries, revision), "chats": chats(rng, countries, lexicon, revision),
            "tools": tools(rng, countries, lexicon, revision)}
    for length in arguments.lengths:
        sets[f"needles-{length}"] = needles(rng, lexicon, texts, tokenizer, length, arguments.needles, revision)
    # last, so that the sets above stay what they were
    sets["stories"] = stories(random.Random(arguments.seed + 1))
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, items in sets.items():
        with (arguments.output / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for index, item in enumerate(items):
                file.write(json.dumps({"name": f"{name}-{index}", **item}, ensure_ascii=False) + "\n")
        print(f"{name}: {len(items)}")


if __name__ == "__main__":
    main()
