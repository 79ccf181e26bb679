"""Masks of grammars beside those of llguidance and xgrammar, token by token along random walks, with the vocabulary of models/tiny.

Each package alone judges, if it is installed. MASK_ORACLE=install makes an environment of its own, installs both, and walks further
(ctest -C Oracle -L oracle); otherwise a part of it runs.
"""

import json
import os
import pathlib
import subprocess
import sys
import types
import unittest

PACKAGES = ["llguidance==1.9.1", "tokenizers==0.23.3", "numpy", "pydantic", "apache-tvm-ffi", "typing_extensions"]
BARE_PACKAGES = ["xgrammar==0.2.8"]  # Without torch and transformers, which its masks do not need.

ALL = os.environ.get("MASK_ORACLE") == "install"
if ALL and sys.prefix == sys.base_prefix:
    # An environment of its own, kept beside the build.
    home = pathlib.Path(os.environ["GRAMMAR_MASKS"]).parent / "mask_oracle_venv"
    python = home / "bin" / "python"
    if not (home / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *BARE_PACKAGES], check=True)
        (home / "done").touch()
    os.execv(python, [str(python), *sys.argv])

try:
    import llguidance
    import llguidance.numpy
    import tokenizers  # noqa: F401
except ImportError:
    llguidance = None
try:
    import numpy
    import tvm_ffi  # noqa: F401
    try:
        import torch  # noqa: F401
    except ImportError:  # xgrammar names it in its types, and makes masks with it, which may be arrays of NumPy too.
        for name in ("torch", "transformers"):
            sys.modules[name] = types.ModuleType(name)
        for name in ("Tensor", "LongTensor", "FloatTensor"):
            setattr(sys.modules["torch"], name, object)
        sys.modules["torch"].int32 = numpy.int32
        sys.modules["torch"].tensor = lambda value, dtype: dtype(value)
        sys.modules["transformers"].__getattr__ = lambda name: object
    import xgrammar
except ImportError:
    xgrammar = None
if llguidance is None and xgrammar is None:
    print("skipped: neither llguidance nor xgrammar is installed")
    sys.exit(77)

TOKENIZER = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny" / "tokenizer.json"
STOP = "<｜end▁of▁sentence｜>"

RULES = [
    ("regex", r"[a-c]+\d{2}|x"),
    ("regex", r"(19|20)\d{2}-(0[1-9]|1[0-2])-[0-3]\d"),
    ("regex", r"(the |a |an )?[A-Z][a-z]*( [a-z]+){0,3}[.!?]"),
    ("regex", r"[^\n\"]{1,12}é*"),
    ("regex", r"[\w.+-]+@[a-z]+\.(com|org)"),
    ("choice", json.dumps(["yes", "no", "maybe", "yes, but", "Straße", "\u4f60\u597d"])),
    ("gbnf", 'root ::= item ("," item)*\nitem ::= "[" root? "]" | [a-z]{1,3}\n'),
    ("gbnf", 'root ::= "SELECT " col (", " col)* " FROM " name (" WHERE " col " = " num)?\ncol ::= name | "*"\nname ::= [a-z_]+\nnum ::= "-"? [0-9]+ ("." [0-9]+)?\n'),
    ("gbnf", 'root ::= e\ne ::= t (("+" | "-") t)*\nt ::= f (("*" | "/") f)*\nf ::= [0-9]+ | "(" e ")"\n'),
    ("gbnf", 'root ::= ("a" | "b" root "b")? "c"*\n'),
    ("lark", "start: e\ne: e \"+\" t | t\nt: t \"*\" f | f\nf: /[0-9]+/ | \"(\" e \")\"\n"),
    ("lark", 'start: "{" pair ("," pair)* "}"\npair: NAME "=" (NUM | "{" pair "}")\nNAME: /[a-z]+/\nNUM: /[0-9]+/\n'),
    ("lark", 'start: begin hunk+ end\nbegin: "*** Begin Patch" LF\nend: "*** End Patch" LF?\nhunk: "*** Add File: " FILE LF line+\nFILE: /(.+)/\nline: "+" TEXT LF\nTEXT: /(.*)/\nLF: /\\n/\n'),
]

# llguidance's \d and \w are those of Unicode, ours and xgrammar's those of ECMA-262.
IN_ASCII = {r"\d": "[0-9]", r"[\w.+-]": "[A-Za-z0-9_.+-]"}


class Ours:
    """Random walks of the matcher here."""

    def __init__(self, walks, steps):
        lines = [json.dumps({"kind": kind, "rule": rule, "walks": walks, "steps": steps}) for kind, rule in RULES]
        result = subprocess.run([os.environ["GRAMMAR_MASKS"], TOKENIZER], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
        self.results = [json.loads(line) for line in result.stdout.splitlines()]


def bits(mask):
    """The ids of a hexadecimal mask."""
    return {4 * i + bit for i, digit in enumerate(mask) for bit in range(4) if int(digit, 16) >> bit & 1}


def word_bits(words):
    return {32 * i + bit for i, word in enumerate(words) for bit in range(32) if (int(word) & 0xFFFFFFFF) >> bit & 1}


class MaskOracle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ours = Ours(walks=20 if ALL else 3, steps=40 if ALL else 16)
        cls.file = json.loads(TOKENIZER.read_text())
        cls.added = {token["id"] for token in cls.file["added_tokens"]}
        cls.ids = {token: id for token, id in cls.file["model"]["vocab"].items()} | {token["content"]: token["id"] for token in cls.file["added_tokens"]}
        cls.names = {id: name for name, id in cls.ids.items()}
        cls.stop = cls.ids[STOP]
        cls.size = max(cls.ids.values()) + 1

    def compare(self, package, make):
        """`make(kind, rule)` gives an object with mask() -> ids and accept(id), or None where the package has not the notation."""
        steps = masks = forced = 0
        for (kind, rule), result in zip(RULES, self.ours.results):
            with self.subTest(package=package, kind=kind, rule=rule):
                self.assertNotIn("error", result)
                for walk in result["walks"]:
                    other = make(kind, rule)
                    if other is None:
                        break
                    for step in walk:
                        ours = bits(step["mask"]) - self.added
                        theirs = {id for id in other.mask() if id < self.size} - self.added
                        if package == "llguidance" and len(theirs) == 1 and theirs < ours:
                            forced += 1  # Text that must come it allows in one way of tokens alone.
                            theirs = ours
                        steps += 1
                        masks += len(ours)
                        self.assertEqual([], sorted(self.names[id] for id in ours - theirs)[:10], "only here")
                        self.assertEqual([], sorted(self.names[id] for id in theirs - ours)[:10], "only there")
                        self.assertEqual(self.stop in bits(step["mask"]), self.stop in other.mask(), "the end")
                        if step["token"] < 0:
                            break
                        other.accept(step["token"])
        print(f"{package}: {steps} masks compared, {masks} tokens allowed in them; {forced} of text that must come")
        self.assertGreater(steps, 100)

    @unittest.skipIf(llguidance is None, "llguidance is not installed")
    def test_llguidance(self):
        import llguidance.hf

        tokenizer = llguidance.LLTokenizer(str(TOKENIZER), eos_token=self.stop)

        class Matcher:
            def __init__(self, grammar):
                self.matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
                if self.matcher.is_error():
                    raise AssertionError(self.matcher.get_error())
                self.words = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size)

            def mask(self):
                llguidance.numpy.fill_next_token_bitmask(self.matcher, self.words, 0)
                return word_bits(self.words[0])

            def accept(self, id):
                if not self.matcher.consume_token(id):
                    raise AssertionError(self.matcher.get_error())

        def make(kind, rule):
            if kind == "regex":
                for ours, theirs in IN_ASCII.items():
                    rule = rule.replace(ours, theirs)
                return Matcher(llguidance.LLMatcher.grammar_from_regex(rule))
            if kind == "choice":
                return Matcher("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in json.loads(rule)))
            if kind == "gbnf":
                return Matcher(llguidance.gbnf_to_lark.gbnf_to_lark(rule))
            return Matcher(rule)

        self.compare("llguidance", make)

    @unittest.skipIf(xgrammar is None, "xgrammar is not installed")
    def test_xgrammar(self):
        # Tokens as bytes: the vocabulary of the file spells bytes by characters.
        spelled = [*range(33, 127), *range(161, 173), *range(174, 256)]
        other = [byte for byte in range(256) if byte not in spelled]
        byte_of = {chr(byte): byte for byte in spelled} | {chr(256 + i): byte for i, byte in enumerate(other)}
        vocabulary = [b""] * self.size
        for token, id in self.ids.items():
            vocabulary[id] = token.encode() if id in self.added else bytes(byte_of[c] for c in token)
        info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, vocab_size=self.size, stop_token_ids=[self.stop])
        compiler = xgrammar.GrammarCompiler(info)

        class Matcher:
            def __init__(self, grammar):
                self.matcher = xgrammar.GrammarMatcher(grammar)
                self.words = numpy.full(xgrammar.get_bitmask_shape(1, info.vocab_size), -1, dtype=numpy.int32)

            def mask(self):
                self.matcher.fill_next_token_bitmask(self.words)
                return word_bits(self.words[0].tolist())

            def accept(self, id):
                if not self.matcher.accept_token(id):
                    raise AssertionError(f"token {id} is not taken")

        def make(kind, rule):
            if kind == "regex":
                return Matcher(compiler.compile_regex(rule))
            if kind == "choice":
                return Matcher(compiler.compile_grammar("root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in json.loads(rule))))
            return Matcher(compiler.compile_grammar(rule)) if kind == "gbnf" else None

        self.compare("xgrammar", make)


if __name__ == "__main__":
    unittest.main()
