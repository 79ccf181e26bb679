#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets that are not at hand elsewhere in tests/: small, valid and deterministic."""

from __future__ import annotations

import gzip
import hashlib
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


def step_message() -> bytes:
    """A step of two states, as src/model/runtime/step_message.cc has it."""
    event = struct.pack("<B7xQQqq", 1, 7, 3, 0, 0)
    def chunk(state: int, tokens: list[int]) -> bytes:
        return struct.pack("<QqBqBqqqQ", state, 40, 2, -1, 0, 0, 0, 0, len(tokens)) + struct.pack(f"<{len(tokens)}i", *tokens)
    return struct.pack("<BQ", 0, 1) + event + struct.pack("<Q", 2) + chunk(7, [1, 2, 9]) + chunk(3, [5])


def http_answer(body: str, head: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body.encode())}\r\n{head}\r\n{body}".encode()


def hub_answers() -> dict[str, bytes]:
    """A listing, a name, and a whole pull: the answers to its connections."""
    content = "{}\n"
    digest = hashlib.sha1(b"blob %d\0" % len(content) + content.encode(), usedforsecurity=False).hexdigest()
    listing = json.dumps({"sha": "ab" * 20, "siblings": [{"rfilename": "config.json", "size": len(content), "blobId": digest}]})
    large = json.dumps({"sha": "cd" * 20, "siblings": [{"rfilename": "m.safetensors", "size": 9, "lfs": {"sha256": "0f" * 32, "size": 9}}]})
    between = b"\n%%%%\n"
    return {"listing": b"\0" + listing.encode(), "large": b"\0" + large.encode(), "name": b"\1owner/name@refs/pr/3",
            "address": b"\1https://huggingface.co/owner/name/tree/main",
            "pull": b"\2" + http_answer(listing) + between + http_answer(content, "Connection: close\r\n")}


def server_bytes() -> dict[str, bytes]:
    """What src/server reads beside bodies of JSON; a byte for the place in front."""
    form = ("multipart/form-data; boundary=x\n--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
            "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n{}\n\r\n--x--\r\n")
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}})
    answer = json.dumps({"id": "batch_1", "custom_id": "a", "response": {"status_code": 200, "request_id": "1", "body": {}}, "error": None})
    heads = "192.0.2.7, 10.0.0.1\nlocalhost:8000\nhttp://localhost:8000\n00-" + "ab" * 16 + "-" + "cd" * 8 + "-01\nk=v\n10.9.0.0/16"
    owner = "0000000000001234"
    response = {"owner": owner, "previous": "", "input": [{"role": "user", "content": "a"}], "reply": {"output": [{"id": "msg_00ef_0"}]}}
    file = {"id": "file-00ab", "object": "file", "bytes": 3, "created_at": 5, "filename": "f", "purpose": "batch", "owner": owner}
    batch = {"id": "batch_00cd", "endpoint": "/v1/responses", "input_file_id": "file-00ab", "status": "in_progress",
             "created_at": 5, "expires_at": 9, "request_counts": {}, "owner": owner}
    texts = {"form": form, "line": line, "files": line + "\n" + line.replace('"a"', '"b"') + "\n\n" + answer + "\n", "heads": heads,
             "response": json.dumps(response), "file": json.dumps(file), "batch": json.dumps(batch), "answer": answer}
    places = {"form": 0, "line": 1, "answer": 1, "files": 2, "heads": 3, "response": 4, "file": 5, "batch": 5}
    return {name: bytes([places[name]]) + text.encode() for name, text in texts.items()}


def http_wire() -> dict[str, bytes]:
    """Requests on one connection; a byte for the length of the pieces in front."""
    post = "POST /v1/x?a=b HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
    texts = {"get": "GET /a%20b HTTP/1.1\r\nHost: a\r\nX-Request-Id: q\r\n\r\nGET / HTTP/1.0\r\n\r\n",
             "length": post + "Content-Length: 2\r\n\r\n{}", "chunks": post + "Transfer-Encoding: chunked\r\n\r\n2;e\r\n{}\r\n0\r\nT: t\r\n\r\n",
             "forwarded": "HEAD / HTTP/1.1\r\nHost: [::1]:80\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: ::1\r\nConnection: close\r\n\r\n"}
    zipped = gzip.compress(b"{}", mtime=0)
    wire = {name: b"\xff" + text.encode() for name, text in texts.items()}
    wire["gzip"] = b"\1" + (post + f"Content-Encoding: gzip\r\nContent-Length: {len(zipped)}\r\n\r\n").encode() + zipped
    return wire


def app_files() -> dict[str, bytes]:
    """Files of commands; a byte for the kind in front."""
    chat = json.dumps([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "x"}])
    profile = json.dumps({"format": "dsv4 expert profile 1", "model": "m", "tokens": 3, "weights": "w", "counts": [[1, 2], [3, 0]]})
    data = json.dumps([{"prompt": "a", "max_tokens": 4}, {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "answer"}]}])
    journal = json.dumps({"source": "s", "options": "o"}) + "\n" + json.dumps(
        {"unit": 1, "source": 2, "output": 3, "comparisons": [[1, 2, 3, 4, 0.5, 0.25]]}) + "\n"
    card = json.dumps({"max_new_tokens": 9, "dsv4_card": {"notice": "n", "words": "a b", "examples": [{"title": "t", "ask": "q"}]}})
    markdown = "\x9f# Head\n\n*a* **b** `c` [l](http://x/)\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 'y' # z\n```\n$x_1^2$\n- [ ] t\n> q\n"
    formula = "\xff\\frac{-b \\pm \\sqrt{b^2-4ac}}{2a}"
    event = json.dumps({"choices": [{"delta": {"content": "a", "tool_calls": [{"function": {"arguments": "{}"}}]},
                                     "logprobs": {"content": [{}]}}], "usage": {"prompt_tokens": 1, "completion_tokens": 2,
                                                                                 "prompt_tokens_details": {"cached_tokens": 0}}})
    stream = f"data: {event}\n\ndata: [DONE]\n\n"
    reply = f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{len(stream):x}\r\n{stream}\r\n0\r\n\r\n"
    # As others' servers write it.
    odd = 'data: {"choices": [{"delta": null}, 5, {"logprobs": []}], "usage": {"prompt_tokens": null}}\n\ndata: {"id": 1}\n\ndata: [DONE]\n\n'
    foreign = f"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n{len(odd):X};a=b\r\n{odd}\r\n0\r\n\r\n"
    texts = [("keys", "sk-one\r\n\nsk-two\n"), ("chat", chat), ("profile", profile), ("data", data),
             ("journal", journal), ("card", card), ("markdown", markdown), ("reply", reply),
             ("models", http_answer(json.dumps({"data": [{"id": "m"}]})).decode())]
    files = {name: bytes([number]) + text.encode("latin-1") for number, (name, text) in enumerate(texts)}
    files["foreign"] = b"\7" + foreign.encode()
    files["tools"] = b"\1" + json.dumps([{"type": "function", "function": {"name": "f"}}]).encode()
    files["formula"] = b"\6" + formula.encode("latin-1")
    return files


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
        "tokenizer/words": b"\x07" + "a the <think> \u4f60\u597d 12345\n\n  x <\uff5cUser\uff5c>don't\u00e9\U0001f600".encode(),
        # One byte of options, four that seed the cuts, then a completion.
        "chat_parser/plain": "A1234Count legs.</think>Eight \u00e9.<\uff5cend\u2581of\u2581sentence\uff5c>".encode(),
        "chat_parser/calls": ("B5678</think>" + TOOL_CALL).encode(),
        # The highest bit of the options: V4.1.
        "chat_parser/calls41": b"\xc2" + ("5678</think>" + TOOL_CALL).encode(),
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
    files |= {f"json_text/{name}.json": text.encode() for name, text in (
        ("prompt", '{"prompt": [1, 2, 2147483647], "a": [-0, 1e5, 1.0, "\\ud83d\\ude00\\n"], "a": null}'),
        ("values", ' [true, false, {"": {}}, [], 123456789012345678901234567890, 1e-400, "\u20ac"] '))}
    files["state_bytes/snapshot"] = bytes([0, 40, 8])
    files["state_bytes/snapshot_end"] = bytes([0, 200, 10, 3, 1, 255])
    files["state_bytes/step"] = b"\1" + step_message()
    for folder, seeds in (("rank_frames", rank_frames()), ("hub_answer", hub_answers()), ("server_bytes", server_bytes()),
                          ("http_wire", http_wire()), ("app_files", app_files())):
        files |= {f"{folder}/{name}": content for name, content in seeds.items()}
    for name, model in (("release", "ordinary"), ("transformers", "tf_narrow")):
        config = CORPUS.parent.parent / "golden" / "models" / model / "config.json"
        files[f"model_config/{name}.json"] = config.read_bytes()
    files["model_config/v41.json"] = (CORPUS.parents[2] / "models" / "tiny-v41" / "config.json").read_bytes()
    for name, content in files.items():
        path = CORPUS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
