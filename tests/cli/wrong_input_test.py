"""Wrong input and output of commands, beyond the words of the command line: what it was, and the exit code."""

import pathlib
import re
import subprocess
import tempfile
import unittest

from dsv4_process import BINARY, PATIENCE, ROOT, TINY, dsv4

QUESTION = "What is the capital of France?"


class WrongInput(unittest.TestCase):
    def test_what_is_no_checkpoint_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            gguf = pathlib.Path(folder) / "model.gguf"
            gguf.write_bytes(b"GGUF")
            for path, wanted in ((gguf, "a file, wanted a checkpoint's directory"), (folder, "no checkpoint, which has config.json")):
                for command in (("run", QUESTION), ("inspect",), ("serve", "--port", "0")):
                    process = dsv4(*command, "-m", path)
                    self.assertEqual(process.returncode, 3, process.stderr)
                    self.assertIn(f"model {path}: {wanted}", process.stderr)

    def test_a_seed_of_more_than_64_bits_is_refused(self):
        for command in (("run", QUESTION), ("synth", "/tmp/never"), ("bench",), ("eval", "generation", "--data", "x")):
            for seed in (2**64, -1, "0x10"):
                process = dsv4(*command, "--seed", seed)
                self.assertEqual(process.returncode, 2, process.stderr)
                self.assertIn(f"got {seed}, wanted 0 or more, less than 2^64", process.stderr)

    def test_a_mistyped_variable_is_said(self):
        said = dsv4("run", "-n", "1", QUESTION, env={"DSV4_RUN_ELEPHANT": "x", "DSV4_ELEPHANT": "x"}).stderr
        self.assertIn("DSV4_RUN_ELEPHANT is the variable of no option\n", said)
        self.assertNotIn("DSV4_ELEPHANT", said)  # Another program's, perhaps.
        for variable, meant in (("DSV4_RUN_TEMPRATURE", "DSV4_RUN_TEMPERATURE"), ("DSV4_BACKEDN", "DSV4_BACKEND"), ("DSV4_MODLE", "DSV4_MODEL"),
                                ("DSV4_TEMPERATURE", "DSV4_RUN_TEMPERATURE"), ("DSV4_RUN_BACKEND", "DSV4_BACKEND"), ("DSV4_RUN_MODEL", "DSV4_MODEL")):
            said = dsv4("run", "-n", "1", QUESTION, env={variable: "x"}).stderr
            self.assertIn(f"{variable} is the variable of no option; did you mean {meant}?", said)
        page = (ROOT / "docs" / "environment-variables.md").read_text()
        with tempfile.TemporaryDirectory() as folder:
            others = {name: f"{folder}/0" for name in re.findall(r"DSV4_[A-Z0-9_]+[A-Z0-9]", page)}
            others |= {"DSV4_MODEL": "", "DSV4_CONFIG": "", "DSV4_BACKEND": "cpu", "DSV4_SERVE_PORT": "1", "DSV4_CPU_ISA": "avx2", "DSV4_RUN_TEMPRATURE": ""}
            others |= {"DSV4_SERVE_OPTIONS": "x", "DSV4_SERVE_PROT": "1", "DSV4_RUN_SERVICE_HOST": "10.0.0.1"}
            self.assertNotIn("did you mean", dsv4("run", "-n", "1", QUESTION, env=others).stderr)

    def test_what_is_no_json_is_said_in_words(self):
        with tempfile.TemporaryDirectory() as folder:
            for damaged in ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors"):
                copy = pathlib.Path(folder) / damaged.replace(".", "_")
                copy.mkdir()
                for each in TINY.iterdir():
                    if each.is_file():
                        (copy / each.name).symlink_to(each)
                (copy / damaged).unlink()
                (copy / damaged).write_bytes((b"\x08" + bytes(7) if damaged.endswith("tensors") else b"") + b'{"a": ,}')
                process = dsv4("run", QUESTION, "-m", copy)
                self.assertEqual(process.returncode, 3, damaged)
                self.assertIn(f"{damaged}: ", process.stderr)
                self.assertIn("not valid JSON", process.stderr)
                self.assertNotIn("json.exception", process.stderr)
            bad = pathlib.Path(folder) / "bad.json"
            bad.write_text('{"a": ,}')
            for command in (("run", "--messages", bad), ("run", QUESTION, "--tools", bad), ("run", QUESTION, "--json-schema", bad), ("encode", "--cases", bad),
                            ("eval", "perplexity", "--data", bad), ("batch", bad, f"{folder}/out")):
                process = dsv4(*command)
                self.assertEqual(process.returncode, 3, command)
                self.assertIn("not valid JSON", process.stderr, command)
                self.assertNotIn("json.exception", process.stderr, command)

    def test_a_full_disk_is_said(self):
        for arguments in (("run", "-q", "--thinking-mode", "chat", "--temperature", "0", QUESTION),
                          ("run", "-q", "--thinking-mode", "chat", "--temperature", "0", QUESTION, "--json"),
                          ("tokenize", "hello"), ("inspect",), ("version",), ("run", "--help")):
            with open("/dev/full", "wb") as full:
                ended = subprocess.run([BINARY, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
            self.assertEqual(ended.returncode, 1, arguments)
            self.assertIn("dsv4: standard output: ", ended.stderr, arguments)

    def test_an_output_does_not_replace_its_input(self):
        with tempfile.TemporaryDirectory() as folder:
            ids = pathlib.Path(folder) / "ids.txt"
            ids.write_text("1 2 3")
            for command in (("logits", "--tokens", ids, "--output", ids), ("experts", "profile", "--text", ids, "--output", ids)):
                process = dsv4(*command)
                self.assertEqual(process.returncode, 3, process.stderr)
                self.assertIn(f"{ids}: ", process.stderr)
                self.assertIn("wanted a file of its own", process.stderr)
            self.assertEqual(ids.read_text(), "1 2 3")
            process = dsv4("diagnose", "residual", "--dump", folder)
            self.assertEqual(process.returncode, 3, process.stderr)
            self.assertIn(f"dump {folder}: holds {ids} already; give a new directory", process.stderr)
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [ids])

    def test_what_is_no_text_is_named_with_its_place(self):
        with tempfile.TemporaryDirectory() as folder:
            notes = pathlib.Path(folder) / "notes.txt"
            notes.write_bytes(b"latin caf\xe9")
            for prompt in ("Shorten:", "-"):
                with open(notes, "rb") as text:
                    process = subprocess.run([BINARY, "run", prompt], stdin=text, capture_output=True, text=True, timeout=600, check=False)
                self.assertEqual(process.returncode, 3, process.stderr)
                self.assertIn("standard input: not valid UTF-8 at byte 9 (0xE9)", process.stderr)

    def test_a_place_for_profiles_that_cannot_be_written_ends_the_server_at_its_start(self):
        process = dsv4("serve", "--port", "0", "--learn-experts", "on", env={"DSV4_EXPERT_PROFILES": "/proc/profiles"})
        self.assertEqual(process.returncode, 1, process.stderr)
        self.assertIn("serve --learn-experts on: /proc/profiles", process.stderr)

    def test_options_that_ask_for_what_is_not_there_are_bad_usage(self):
        with tempfile.TemporaryDirectory() as folder:
            tokens, data = pathlib.Path(folder) / "ids.json", pathlib.Path(folder) / "data.jsonl"
            tokens.write_text("[1, 2, 3]")
            data.write_text('{"prompt": "a", "answer": "b"}\n')
            logits = ("logits", "--tokens", tokens, "--output", pathlib.Path(folder) / "logits.npy", "--draft", "dspark")
            for command, words in (
                (("run", QUESTION, "--backend", "cpu", "--experts", "auto"), "--experts auto: got --backend cpu, want cuda"),
                (("run", QUESTION, "--backend", "cpu", "--gpu-memory", "4"), "--gpu-memory 4: got --backend cpu, want cuda"),
                (("serve", "--port", "0", "--backend", "cpu", "--host-memory", "4"), "--host-memory 4: got --backend cpu, want cuda"),
                (("run", QUESTION, "--experts", "disk", "--ranks", "2"), "--experts disk: with several ranks"),
                (("bench", "--loopback-ranks", "2", "--experts", "disk"), "--experts disk: with several ranks"),
                (("bench", "--loopback-ranks", "2", "--backend", "cuda", "--experts", "auto"), "--experts auto: got --placement tensor"),
                (("run", QUESTION, "--backend", "cuda", "--experts", "auto", "--ranks", "2", "--placement", "expert"),
                 "--experts auto: got --placement expert, want pipeline"),
                (("run", QUESTION, "--backend", "cuda", "--experts", "host=50%", "--ranks", "4", "--placement", "pipeline=2,tensor"),
                 "--experts host=50%: got --placement pipeline=2,tensor, want pipeline"),
                (("run", QUESTION, "--experts", "disk", "--weights", "synthetic:tiny"), "--experts disk: synthetic:tiny is in no file"),
                # Whether this build has the backend comes behind.
                (("run", QUESTION, "--backend", "cuda", "--experts", "host=all"), '--experts: experts "host=all": got "host=all"'),
                (("inspect", "--backend", "cuda", "--experts", "host=999"), 'got "host=999"'),
                (("run", QUESTION, "--max-layers", "99"), "--max-layers: got 99, wanted 1 to 7"),
                (("inspect", "--max-layers", "99"), "--max-layers: got 99, wanted 1 to 7"),
                (("run", QUESTION, "--regex", "("), "--regex: pattern, character 1"),
                (("eval", "generation", "--data", data, "--top-p", "4"), "top_p: got 4"),
                (("eval", "generation", "--data", data, "--effort", "huge"), "effort: got 'huge'"),
                (("eval", "perplexity", "--data", data, "--against-backend", "reference", "--max-layers", "8"), "--max-layers: got 8"),
                ((*logits, "--drafts", "9"), "--drafts: got 9, wanted at most 5"),
            ):
                with self.subTest(command=command):
                    process = dsv4(*command)
                    self.assertEqual(process.returncode, 2, process.stderr)
                    self.assertIn(words, process.stderr)

    def test_a_stop_text_is_not_empty(self):
        for command in (("run", QUESTION), ("eval", "generation", "--data", "no.jsonl")):
            with self.subTest(command=command):
                refused = dsv4(*command, "--stop", "x", "--stop", "")
                self.assertEqual(refused.returncode, 2, refused.stderr)
                self.assertIn("--stop: got an empty text, wanted at least one character", refused.stderr)

    def test_what_names_something_is_not_empty(self):
        """A variable of a script that is not set is no wish for the default."""
        for option, command in (("DIR", ("synth", "")), ("DST", ("convert", "x", "")), ("--model", ("inspect", "-m", "")), ("--output", ("logits", "--tokens", "x", "--output", "")),
                                ("--data", ("eval", "perplexity", "--data", "")), ("--tls-certificate", ("serve", "--tls-certificate", "", "--tls-key", "x")),
                                ("--prefix-cache-dir", ("serve", "--prefix-cache-dir", "")), ("--access-log", ("serve", "--access-log", "")),
                                ("--alias", ("serve", "--alias", "a", "--alias", "")), ("--server", ("bench", "--server", "")), ("--dataset", ("bench", "--server", "http://x:1", "--dataset", "")),
                                ("--html", ("diagnose", "files", "--html", "")), ("NAME", ("pull", "")), ("--against-model", ("eval", "perplexity", "--data", "x", "--against-model", ""))):
            with self.subTest(command=command):
                refused = dsv4(*command)
                self.assertEqual(refused.returncode, 2, refused.stderr)
                self.assertIn(f"{option}: got an empty text\n", refused.stderr)

    def test_lists_of_numbers_have_no_empty_item(self):
        for command, words in ((("inspect", "--gpu-sizes", "24,,48"), "'24,,48': got '', wanted a number"), (("inspect", "--gpu-sizes", "24,0"), "'24,0': got 0, wanted more than 0"),
                               (("bench", "--speculation", "mtp", "--acceptance", "0.5,"), "'0.5,': got '', wanted a number"),
                               (("bench", "--speculation", "mtp", "--acceptance", "0.5,nan"), "'0.5,nan': got nan, wanted 0 to 1")):
            with self.subTest(command=command):
                refused = dsv4(*command)
                self.assertEqual(refused.returncode, 2, refused.stderr)
                self.assertIn(words, refused.stderr)

    def test_options_of_a_model_are_none_of_a_servers(self):
        for option in (("-m", "x"), ("--backend", "cpu"), ("--threads", "2"), ("--ranks", "2"), ("--weights", "synthetic:tiny")):
            with self.subTest(option=option):
                refused = dsv4("bench", "--server", "http://127.0.0.1:9", *option)
                self.assertEqual(refused.returncode, 2, refused.stderr)
                self.assertRegex(refused.stderr, "is for a model that runs here|excludes --ranks")


if __name__ == "__main__":
    unittest.main()
