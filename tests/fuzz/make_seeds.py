#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets that are not at hand elsewhere in tests/: small, valid and deterministic."""

from __future__ import annotations

import json
import struct
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"
TOOL_CALL = """

<\uff5cDSML\uff5ctool_calls>
<\uff5cDSML\uff5cinvoke name="f">
<\uff5cDSML\uff5cparameter name="k" string="true">v & w</\uff5cDSML\uff5cparameter>
<\uff5cDSML\uff5cparameter name="n" string="false">{"a": [1, 2.5e3]}</\uff5cDSML\uff5cparameter>
</\uff5cDSML\uff5cinvoke>
</\uff5cDSML\uff5ctool_calls>"""


def safetensors(tensors: dict[str, tuple[str, list[int], int]], metadata: dict[str, str] | None = None) -> bytes:
    """A file of tensors given as name: (dtype, shape, bytes), filled with a count."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(i % 251 for i in range(offset))


def byte_alphabet() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE, in order of the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def tokenizer_file() -> str:
    """A whole tokenizer in V4's form: all bytes, four merges, two added tokens."""
    vocab = {text: index + 2 for index, text in enumerate(byte_alphabet())}
    merges = ["a a", "a b", "aa aa", "\u0120 b"]
    for merge in merges:
        vocab[merge.replace(" ", "")] = len(vocab) + 2
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    split = {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?[a-z]+|\\s+"}, "behavior": "Isolated", "invert": False}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 0, "content": "<|x|>", **added}, {"id": 1, "content": "<|y|>", **added}],
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                  "merges": merges},
    }, separators=(",", ":"))


def rank_frames() -> dict[str, bytes]:
    """What ranks send each other, as src/comm has it: a byte for the place, then the bytes."""
    frame = struct.pack("<IIQQ", 0x34465644, 1, 1, 8) + bytes(range(8))
    notice = struct.pack("<QIIQ488s", 0x3453574E34565344, 13, 0, 1, b"rank 1: an op failed")
    silent = struct.pack("<QIIQ488s", 0x3453574E34565344, 0, 0, 1, b"")  # Has ended, and says that nothing is wrong.
    word = struct.pack("<I508s", 0, b"")
    hello = struct.pack("<Qiii64s64s512s4x", 0x344F4C4C45485634, 2, 1, 77, b"boot", b"node2", b"fuzz")
    place = word + struct.pack("<H2x", 29500)
    link = struct.pack("<Q16siI", 0x344B4E494C345644, bytes([7] * 16), 1, 0)
    return {"frames": b"\0" + bytes([4 * len(frame)]) + 4 * frame, "notice": b"\0" + bytes([len(frame)]) + frame + notice,
            "silent": b"\0" + bytes([len(frame)]) + frame + silent,
            "hello": b"\1" + hello, "place": b"\1" + hello + place + word, "link": b"\2" + link + link}


def main() -> None:
    files = {
        "safetensors/two.safetensors": safetensors({"a": ("BF16", [2, 3], 12), "b.scale": ("F8_E8M0", [5], 5)},
                                                   {"format": "pt"}),
        "safetensors/kinds.safetensors": safetensors({"w": ("I8", [4, 2], 8), "s": ("F8_E4M3", [4, 1], 4),
                                                      "g": ("F32", [], 4), "i": ("I64", [1, 1, 2], 16),
                                                      "none": ("F16", [0, 7], 0)}),
        "safetensors/index.json": json.dumps({"metadata": {"total_size": 17}, "weight_map": {
            "a": "model-00001-of-00002.safetensors", "b.scale": "model-00002-of-00002.safetensors"}}).encode(),
        "tokenizer_file/small.json": tokenizer_file().encode(),
        # One byte of options, four that seed the cuts, then a completion.
        "chat_parser/plain": "A1234Count legs.</think>Eight \u00e9.<\uff5cend\u2581of\u2581sentence\uff5c>".encode(),
        "chat_parser/calls": ("B5678</think>" + TOOL_CALL).encode(),
        "chat_parser/calls_in_reasoning": ("C9012Let me see." + TOOL_CALL + TOOL_CALL[:60]).encode(),
        # One byte of options, then messages.
        "chat_render/dialogue.json": b"\x00" + json.dumps([
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <think>"},
            {"role": "assistant", "content": "Hello.", "reasoning_content": "A greeting."},
            {"role": "user", "content": "1e5 + 1?"}]).encode(),
        "chat_render/tools.json": b"\x04" + json.dumps([
            {"role": "system", "content": "", "tools": [{"type": "function", "function": {
                "name": "f", "description": "d", "parameters": {"type": "object", "properties": {"k": {"type": "string"}}}}}]},
            {"role": "user", "content": "call"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"k\": 1.5}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "ok"}]).encode(),
    }
    files |= {f"rank_frames/{name}": content for name, content in rank_frames().items()}
    for name, model in (("release", "ordinary"), ("transformers", "tf_narrow")):
        config = CORPUS.parent.parent / "golden" / "models" / model / "config.json"
        files[f"model_config/{name}.json"] = config.read_bytes()
    for name, content in files.items():
        path = CORPUS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
