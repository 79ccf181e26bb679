"""Constrained decoding here beside XGrammar and llguidance: time to compile, time of masks, memory, and which keywords of JSON Schema hold.

    python -m venv VENV && VENV/bin/pip install xgrammar llguidance tokenizers numpy jsonschema
    VENV/bin/python bench/grammar/beside_engines.py build/release

All walk at random under their masks, with the vocabulary of DeepSeek's release. Texts that end are judged by the package jsonschema. The
packages are called from Python, which adds about a microsecond to a mask. Their seconds are those of the CPU, ours those of the clock.
"""

from __future__ import annotations

import json
import random
import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STOP = "<｜end▁of▁sentence｜>"
ENGINES = ("xgrammar", "llguidance")
# A schema that says one thing each, by the keyword that it is about.
KEYWORDS: dict[str, dict] = {
    "enum": {"enum": ["a", 1, None, [2]]}, "const": {"const": {"a": [1, 2]}},
    "required": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["b"]},
    "patternProperties": {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^[a-c]{2}$"}, "additionalProperties": {"type": "integer"}},
    "minProperties": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2, "maxProperties": 3},
    "dependentRequired": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "dependentSchemas": {"a": {"required": ["b"]}}},
    "prefixItems": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False},
    "minItems": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "contains": {"type": "array", "items": {"type": ["integer", "boolean"]}, "contains": {"type": "boolean"}, "maxItems": 4},
    "uniqueItems": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "maxItems": 3},
    "maxLength": {"type": "string", "minLength": 2, "maxLength": 5}, "pattern": {"type": "string", "pattern": "^[a-f]+-[0-9]{2}$"},
    "format date": {"type": "string", "format": "date"}, "format ipv4": {"type": "string", "format": "ipv4"},
    "integer bounds": {"type": "integer", "minimum": -17, "maximum": 1234}, "number bounds": {"type": "number", "exclusiveMinimum": 0.5, "maximum": 3},
    "multipleOf": {"type": "integer", "multipleOf": 7}, "anyOf": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    "oneOf, disjoint": {"oneOf": [{"type": "integer"}, {"type": "boolean"}]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 90}]},
    "not": {"type": "integer", "minimum": 0, "maximum": 9, "not": {"const": 4}},
    "if": {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "integer"}}, "required": ["a"], "additionalProperties": False,
           "if": {"properties": {"a": {"const": True}}}, "then": {"required": ["b"]}},
    "$ref": {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"n": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
                                                 "required": ["n"], "additionalProperties": False}}},
}


def subjects() -> dict[str, str]:
    """The schemas of grammar_bench that are no tools."""
    text = (ROOT / "bench/grammar/grammar_bench.cc").read_text()
    return {name: schema for name, schema in re.findall(r'\{"([^"]+)",\s*R"\(([^\n]*)\)"\}', text)}


def vocabulary(folder: Path) -> Path:
    """The release's tokenizer.json."""
    path = folder / "deepseek-tokenizer.json"
    if not path.exists():
        subprocess.run(["zstd", "-dqf", ROOT / "tests/fixtures/tokenizer/deepseek-v3-tokenizer.json.zst", "-o", path], check=True)
    return path


def matchers(engine: str, tokenizer: Path):
    """A function that compiles a schema, one that begins a text of it (mask() -> words, accept(id)), and every token's bytes."""
    import numpy

    file = json.loads(tokenizer.read_text())
    added = {token["content"]: token["id"] for token in file["added_tokens"]}
    ids = file["model"]["vocab"] | added
    size = max(ids.values()) + 1
    spelled = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_of = {chr(byte): byte for byte in spelled} | {chr(256 + i): byte for i, byte in enumerate(b for b in range(256) if b not in spelled)}
    names = [b""] * size
    for token, number in ids.items():
        names[number] = token.encode() if token in added else bytes(byte_of[c] for c in token)
    stop = ids[STOP]
    if engine == "xgrammar":
        import xgrammar

        info = xgrammar.TokenizerInfo(names, xgrammar.VocabType.RAW, vocab_size=size, stop_token_ids=[stop])
        compiler = xgrammar.GrammarCompiler(info, max_threads=2, cache_enabled=False)

        class Text:
            def __init__(self, grammar) -> None:
                self.matcher = xgrammar.GrammarMatcher(grammar)
                self.words = numpy.full(xgrammar.get_bitmask_shape(1, size), -1, dtype=numpy.int32)

            def mask(self):
                # False: every token is allowed, and the words are left as they are.
                if not self.matcher.fill_next_token_bitmask(self.words):
                    self.words[:] = -1
                return self.words[0]

            def accept(self, number: int) -> bool:
                return self.matcher.accept_token(number)

        return compiler.compile_json_schema, Text, names, stop
    import llguidance
    import llguidance.numpy

    shared = llguidance.LLTokenizer(str(tokenizer), eos_token=stop)

    def compile_schema(schema: str):
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        matcher = llguidance.LLMatcher(shared, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    class Text:
        def __init__(self, matcher) -> None:
            self.matcher = matcher.deep_copy()
            self.words = llguidance.numpy.allocate_token_bitmask(1, shared.vocab_size)

        def mask(self):
            llguidance.numpy.fill_next_token_bitmask(self.matcher, self.words, 0)
            return self.words[0]

        def accept(self, number: int) -> bool:
            return self.matcher.consume_token(number)

    return compile_schema, Text, names, stop


def walk(text, names: list[bytes], stop: int, chance: random.Random, steps: int, ends: float) -> tuple[list[float], bytes | None]:
    """Seconds of each mask, and what was written; None where it did not end."""
    import numpy

    times, written = [], b""
    for _ in range(steps):
        start = time.thread_time()
        words = text.mask()
        times.append(time.thread_time() - start)
        allowed = numpy.flatnonzero(numpy.unpackbits(words.view(numpy.uint8), bitorder="little")[:len(names)])
        if allowed.size == 0:
            return times, None
        number = int(allowed[chance.randrange(allowed.size)])
        if allowed[numpy.searchsorted(allowed, stop) % allowed.size] == stop and (allowed.size == 1 or chance.random() < ends):
            return times, written
        if number == stop:
            return times, written
        # Texts end sooner where what closes them is preferred.
        if chance.random() < ends * len(times) / 40:
            short = [int(n) for n in allowed if len(names[n]) == 1 and names[n] in b'"}]']
            number = chance.choice(short) if short else number
        if not text.accept(number):
            raise ValueError(f"token {number} of the mask is not taken")
        written += names[number]
    return times, None


def megabytes() -> float:
    return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def validate(texts: list[str], schema: dict) -> tuple[int, int]:
    """How many texts there are, and how many of them are not of the schema."""
    import jsonschema

    judge = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    wrong = 0
    for text in texts:
        try:
            wrong += not judge.is_valid(json.loads(text))
        except ValueError:
            wrong += 1
    return len(texts), wrong


def one_engine(engine: str, tokenizer: Path) -> None:
    chance = random.Random(1)
    compile_schema, text, names, stop = matchers(engine, tokenizer)
    before = megabytes()
    for name, schema in subjects().items():
        start = time.process_time()
        grammar = compile_schema(schema)
        compiled = time.process_time() - start
        first, _ = walk(text(grammar), names, stop, chance, 400, 0.25)
        times: list[float] = []
        while len(times) < 1000:
            times += walk(text(grammar), names, stop, chance, 400, 0.25)[0]
        times.sort()
        print(f"{engine:<12}{name:<16}{1e3 * compiled:10.2f}{1e3 * max(first):10.2f}{1e6 * statistics.median(times):10.1f}"
              f"{1e6 * times[int(0.99 * len(times))]:10.1f}{1e6 * statistics.fmean(times):10.1f}", flush=True)
    print(f"{engine:<12}memory beside the tokenizer {megabytes() - before:.0f} MB, in all {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    for keyword, schema in KEYWORDS.items():
        try:
            grammar = compile_schema(json.dumps(schema))
            texts = [written.decode(errors="replace") for _ in range(30) if (written := walk(text(grammar), names, stop, chance, 120, 0.3)[1]) is not None]
            count, wrong = validate(texts, schema)
            print(f"{engine:<12}{keyword:<20}{count - wrong} of {count} texts hold", flush=True)
        except (ValueError, RuntimeError) as error:
            print(f"{engine:<12}{keyword:<20}refused: {str(error)[:90]!r}", flush=True)


def ours(build: Path) -> None:
    result = subprocess.run([build / "grammar_bench"], cwd=ROOT, capture_output=True, text=True, check=True)
    print(result.stdout, end="")
    print(f"{'dsv4':<12}memory in all {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MB")
    lines = "".join(json.dumps(schema) + "\n" for schema in KEYWORDS.values())
    result = subprocess.run([build / "tests/grammar_walk"], cwd=ROOT, input=lines, capture_output=True, text=True, check=True)
    for (keyword, schema), line in zip(KEYWORDS.items(), result.stdout.splitlines(), strict=True):
        answer = json.loads(line)
        if "error" in answer:
            print(f"{'dsv4':<12}{keyword:<20}refused: {answer['error'][:90]!r}")
        else:
            count, wrong = validate([text for text in answer["texts"] if text is not None], schema)
            print(f"{'dsv4':<12}{keyword:<20}{count - wrong} of {count} texts hold")


def main() -> None:
    build = Path(sys.argv[1]).resolve()
    if len(sys.argv) == 3:
        one_engine(sys.argv[2], vocabulary(Path("/tmp")))
        return
    ours(build)
    print(f"{'package':<12}{'schema':<16}{'compile ms':>10}{'cold ms':>10}{'median us':>10}{'p99 us':>10}{'mean us':>10}", flush=True)
    for engine in ENGINES:
        subprocess.run([sys.executable, __file__, str(build), engine], check=False)


if __name__ == "__main__":
    main()
