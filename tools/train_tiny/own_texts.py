"""Writes what the shipped model itself says: prompts, and its answers by a `dsv4 serve` that runs, for train_drafter.py.

A drafter foretells this model, not the texts that it was trained on. So it learns from the model's own answers, greedy ones and drawn
ones, to the prompts of the training mixture and to wordings that the model has never seen, where it wanders. Prompts of eval/ and of
bench/speculation are left out.

  dsv4 serve --model models/tiny --port 8000 --speculation off &
  python3 own_texts.py --model models/tiny --data DATA --server http://127.0.0.1:8000 --count 12000 --output own.jsonl

A line: {"ids": prompt and answer, "prompt": tokens of the prompt, "greedy": whether every token is the most likely one}.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenizers import Tokenizer

from chat import BOS, attach_tools, render
from dialogues import dialogue
from facts import Country, load_countries
from lexicon import ANIMALS, CITIES, COLOURS, FOODS, JOBS, MOODS, OBJECTS, PEOPLE, PLACES, Lexicon
from stories import story
from tooluse import tool_dialogue

_HERE = Path(__file__).resolve().parent
# What users say to a model that has learnt other wordings.
_STRANGE = [
    "Tell me a story about a {object}.", "Tell me a tale of {person}.", "A story about {animal} and {food}, please.",
    "Tell me about {country}.", "Tell me about the {object}.", "Write a poem about {word}.", "What do you think of {city}?",
    "Where is {city}?", "Who is {person}?", "Is {person} a {job}?", "Where is the {object}?", "Do you like {food}?",
    "What colour is a {animal}?", "How many {animal}s are there?", "I saw a {mood} {animal} at the {place}.",
    "My name is {person}. What is my name?", "I live in {city}. Where do I live?", "What is a {object} for?",
    "Give me three words about the {place}.", "Explain {word} to a child.", "Translate {word} to French.",
    "Name a country near {country}.", "What language do they speak in {country}?", "How far is it from {city} to {city}?",
    "Finish this: the {colour} {object}", "Say something about {word} and {word}.", "Can a {animal} eat {food}?",
    "What would a {job} do with a {object}?", "{word} {word} {word}", "Why is the {object} {colour}?",
    "Count from {number} to {number}.", "What is {number} and {number} and {number}?", "Is {number} more than {number}?",
    "Make a sentence with {word}.", "What comes after {word}?", "Describe the {place}.", "I am {mood}.", "Who lives in the {place}?",
    "Continue: One day {person} went to the {place}", "List five {food}s.",
]
_KINDS = {"dialogue": 40, "strange": 28, "story": 10, "tools": 12, "text": 10}


class Prompts:
    """Draws prompts as text in the chat grammar, none of which is one of the evaluation's."""

    def __init__(self, data: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.countries: list[Country] = load_countries(data)
        self.lexicon = Lexicon.from_corpus(data / "corpus.jsonl.gz")
        self.left_out = evaluation_prompts()

    def strange(self) -> str:
        rng = self.rng
        draws = {"object": OBJECTS, "person": PEOPLE, "animal": ANIMALS, "food": FOODS, "city": CITIES, "job": JOBS,
                 "mood": MOODS, "place": PLACES, "colour": COLOURS, "word": self.lexicon.words,
                 "country": [c.name for c in self.countries], "number": [str(n) for n in range(100)]}
        text = rng.choice(_STRANGE)
        for name, values in draws.items():
            while f"{{{name}}}" in text:
                text = text.replace(f"{{{name}}}", rng.choice(values), 1)
        return text

    def draw(self) -> str:
        rng = self.rng
        while True:
            kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
            mode = rng.choice(("chat", "chat", "thinking"))
            if kind == "dialogue":
                prompt = render(dialogue(rng, self.countries, self.lexicon)[:-1], mode)
            elif kind == "tools":
                messages, tools, _ = tool_dialogue(rng, self.countries, self.lexicon)
                ends = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
                prompt = render(attach_tools(messages[:rng.choice(ends)], tools), mode)
            elif kind == "strange":
                prompt = render([{"role": "user", "content": self.strange()}], mode)
            elif kind == "story":
                prompt = BOS + story(rng).split(". ")[0] + "."
            else:  # a sentence that somebody says
                prompt = render([{"role": "user", "content": rng.choice(story(rng).split(". "))}], mode)
            if prompt not in self.left_out:
                return prompt


def evaluation_prompts() -> set[str]:
    prompts = {item["prompt"] for path in sorted((_HERE / "eval").glob("*.jsonl"))
               for item in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
    bench = _HERE.parent.parent / "bench" / "speculation" / "prompts.jsonl"
    for item in map(json.loads, bench.read_text(encoding="utf-8").splitlines()):
        prompts |= {render(item["messages"], mode) for mode in ("chat", "thinking")}
    return prompts


def ask(server: str, ids: list[int], greedy: bool, seed: int, max_tokens: int) -> list[int]:
    body = {"prompt": ids, "max_tokens": max_tokens, "temperature": 0 if greedy else 1, "seed": seed, "return_token_ids": True}
    request = urllib.request.Request(f"{server}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)["choices"][0]["token_ids"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--count", type=int, required=True, help="answers")
    parser.add_argument("--seconds", type=float, default=1e9, help="ask no more after so many")
    parser.add_argument("--greedy", type=float, default=0.6, help="share of greedy answers; the others are drawn at temperature 1")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--streams", type=int, default=32, help="requests at a time")
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--output", type=Path, required=True, help="is added to")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    end = json.loads((arguments.model / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
    prompts, lock, begin = Prompts(arguments.data, arguments.seed), threading.Lock(), time.monotonic()
    written = [0, 0]  # answers, and their tokens

    def one(index: int) -> None:
        if time.monotonic() - begin > arguments.seconds:
            return
        with lock:
            prompt, greedy = prompts.draw(), prompts.rng.random() < arguments.greedy
        ids = tokenizer.encode(prompt).ids
        answer = ask(arguments.server, ids, greedy, arguments.seed + index, arguments.max_tokens)
        if len(answer) < arguments.max_tokens and answer[-1:] != [end]:
            answer = [*answer, end]
        with lock:
            file.write(json.dumps({"ids": ids + answer, "prompt": len(ids), "greedy": greedy}) + "\n")
            written[0] += 1
            written[1] += len(answer)

    with arguments.output.open("a", encoding="utf-8") as file, ThreadPoolExecutor(arguments.streams) as pool:
        for _ in pool.map(one, range(arguments.count)):
            pass
    seconds = time.monotonic() - begin
    print(f"{written[0]} answers, {written[1]} tokens, {seconds:.0f} s, {written[1] / seconds:.0f} tokens/s")


if __name__ == "__main__":
    main()
