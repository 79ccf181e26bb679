"""Trains the small model's byte-level BPE and writes `tokenizer.json` and `tokenizer_config.json` in the release's form.

The V4 special strings get other ids than in the release, so that an engine with hard-coded ids fails on this model.

  python3 make_tokenizer.py --data .train --output models/tiny
"""

from __future__ import annotations

import argparse
import json
import random
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from chat import ASSISTANT, BOS, DSML, END_THINK, EOS, REMINDER, SYSTEM, THINK, USER, V41, attach_tools, render
from dialogues import dialogue
from facts import load_countries, raw_fact
from generator import load_texts
from lexicon import Lexicon
from recall import records
from stories import story
from tooluse import tool_dialogue

PAD = "<｜▁pad▁｜>"
# inside the vocabulary, as the release has them, but in another order than its BOS 0, EOS 1, pad 2
_FIRST = [EOS, PAD, BOS]
# after the vocabulary; `special` as reported for V4: chat marks are not special, the rest is
_ADDED = [(END_THINK, False), (THINK, False), (DSML, False), (ASSISTANT, False), (USER, False), (REMINDER, True),
          ("<｜action｜>", True), ("<｜query｜>", True), ("<｜authority｜>", True), ("<｜domain｜>", True),
          ("<｜title｜>", True), ("<｜extracted_url｜>", True), ("<｜read_url｜>", True), ("<｜fim▁end｜>", True),
          ("<｜fim▁hole｜>", True), ("<｜fim▁begin｜>", True), ("<|EOT|>", True)]
# V4.1 has a mark for system turns, and unused ids behind it, the last of which is the drafter's noise
_ADDED_V41 = [(SYSTEM, False), ("<｜place▁holder▁no▁0｜>", True), ("<｜place▁holder▁no▁1｜>", True)]
# the release's three splits, character for character
_SPLITS = ["\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
           "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
           " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]


def build(texts: list[str], size: int, added: list[tuple[str, bool]]) -> Tokenizer:
    """Trains `size` base strings on `texts` and appends the added tokens: text, and whether it is special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), behavior="isolated", invert=False) for p in _SPLITS] +
        [pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    special = [AddedToken(t, normalized=False, special=True) for t in _FIRST]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    marks = re.compile("|".join(re.escape(t) for t in _FIRST + [t for t, _ in added]))
    tokenizer.train_from_iterator((piece for text in texts for piece in marks.split(text) if piece), trainer)
    for text, is_special in added:
        token = AddedToken(text, normalized=False, special=is_special)
        if is_special:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with corpus.jsonl.gz and the country files")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--size", type=int, default=5070, help="base strings, special ones of the vocabulary included")
    parser.add_argument("--revision", choices=("v4", V41), default="v4")
    parser.add_argument("--seed", type=int, default=4)
    arguments = parser.parse_args()

    rng = random.Random(arguments.seed)
    countries = load_countries(arguments.data)
    lexicon = Lexicon.from_corpus(arguments.data / "corpus.jsonl.gz")
    texts = load_texts(arguments.data, "train")
    sample = [t for t in texts if rng.random() < 0.5]
    for country in countries:  # every country and capital is met often enough to become few tokens
        sample += [f"The capital of {country.name} is {country.capital}. {country.capital} {country.name}"] * 150
    sample += [raw_fact(rng, countries) for _ in range(6000)]
    sample += [render(dialogue(rng, countries, lexicon), "thinking", revision=arguments.revision) for _ in range(20000)]
    sample += [story(rng) for _ in range(3000)]
    sample += [records(rng, lexicon)[0] for _ in range(4000)]
    for _ in range(1200):
        messages, tools, _ = tool_dialogue(rng, countries, lexicon)
        sample.append(render(attach_tools(messages, tools), "thinking", revision=arguments.revision))
    tokenizer = build(sample, arguments.size, _ADDED + (_ADDED_V41 if arguments.revision == V41 else []))

    arguments.output.mkdir(parents=True, exist_ok=True)
    layout = json.loads(tokenizer.to_str())
    # the release's file has merges as "a b" strings and no `ignore_merges`
    layout["model"]["merges"] = [" ".join(pair) for pair in layout["model"]["merges"]]
    layout["model"].pop("ignore_merges", None)
    (arguments.output / "tokenizer.json").write_text(json.dumps(layout, ensure_ascii=False, indent=0) + "\n",
                                                     encoding="utf-8")
    config = {"add_bos_token": False, "add_eos_token": False, "bos_token": BOS, "eos_token": EOS, "pad_token": EOS,
              "clean_up_tokenization_spaces": False, "legacy": True, "model_max_length": 1048576, "unk_token": None,
              "tokenizer_class": "PreTrainedTokenizerFast"}
    (arguments.output / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n",
                                                            encoding="utf-8")
    held_out = load_texts(arguments.data, "held_out")
    characters = sum(map(len, held_out))
    tokens = sum(len(e.ids) for e in tokenizer.encode_batch(held_out))
    whole = sum(len(tokenizer.encode(" " + c.capital).ids) == 1 for c in countries)
    print(f"{tokenizer.get_vocab_size()} strings; {characters / tokens:.2f} characters a token on held-out text; "
          f"{whole} of {len(countries)} capitals are one token")
    print("tools prompt:", len(tokenizer.encode(sample[-1]).ids), "tokens, e.g.", tokenizer.encode(sample[-1]).tokens[:40])


if __name__ == "__main__":
    main()
