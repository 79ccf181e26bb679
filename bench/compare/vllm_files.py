"""A checkpoint as vLLM reads it, and a tokenizer that has a text for every id of the model's vocabulary: without one an answer of random
weights has tokens that are no text, which no client sees come."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def word(number: int) -> str:
    """A space, qz and four letters, others for every number under 26 ** 4, as no English text has them."""
    letters = [LETTERS[number // 26**place % 26] for place in range(4)]
    return "\u0120qz" + "".join(letters)


def fill_tokenizer(path: Path, size: int) -> None:
    """Gives a text to every id under `size` that has none. No merge leads there, so texts keep their tokens. Added tokens are of the vocabulary too:
    Hugging Face's library counts ids of those that are not from the vocabulary's size on."""
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {token["content"]: token["id"] for token in content["added_tokens"]}
    taken = set(vocabulary.values())
    for number in range(size):
        if number not in taken:
            if word(number) in vocabulary:
                raise ValueError(f"{path}: {word(number)!r} is a token already")
            vocabulary[word(number)] = number
    path.write_text(json.dumps(content, ensure_ascii=False))


def tokenizer_config(checkpoint: Path) -> dict:
    """`checkpoint`: with a config.json that says which tokens begin and end a text."""
    config = json.loads((checkpoint / "config.json").read_text())
    content = json.loads((checkpoint / "tokenizer.json").read_text())
    texts = {number: text for text, number in content["model"]["vocab"].items()} | {token["id"]: token["content"] for token in content["added_tokens"]}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": texts[config["bos_token_id"]], "eos_token": texts[config["eos_token_id"]],
            "model_max_length": config["max_position_embeddings"], "clean_up_tokenization_spaces": False, "add_bos_token": False}


def provide(checkpoint: Path, folder: Path) -> Path:
    """`folder`, made anew: links to the files of the checkpoint, and a tokenizer_config.json unless it has one. The checkpoint stays as it is."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in checkpoint.iterdir():
        if path.is_file():
            (folder / path.name).symlink_to(path.resolve())
    told = folder / "tokenizer_config.json"
    if not told.exists():
        told.write_text(json.dumps(tokenizer_config(checkpoint), indent=1) + "\n")
    return folder
