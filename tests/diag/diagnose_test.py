"""`dsv4 diagnose` as people and scripts use it: verdicts, suspects, exit codes."""

import json
import pathlib
import shutil
import struct
import tempfile
import unittest

from dsv4_process import ROOT, TINY, dsv4

BOS = "<｜begin▁of▁sentence｜>"
HERE = pathlib.Path(__file__).resolve().parent
QUESTION = "What is the capital of France?"


def diagnose(*arguments):
    """Exit code and the reports of a run with --json."""
    process = dsv4("diagnose", *arguments, "--json")
    if process.returncode not in (0, 1) or not process.stdout:
        raise AssertionError(f"exit code {process.returncode}: {process.stderr}")
    return process.returncode, json.loads(process.stdout)["checks"]


def prompt_of(*arguments):
    """Text and ids of our own rendering."""
    _, (report,) = diagnose("prompt", *arguments)
    text = next(line for line in report["evidence"] if line.startswith("text: "))
    return text.removeprefix("text: "), [int(row[1]) for row in report["tables"][0]["rows"]]


class WithDirectory(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)

    def write(self, content):
        self.num_files = getattr(self, "num_files", 0) + 1
        path = self.directory / f"other{self.num_files}"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path


class Prompt(WithDirectory):
    def expect_same(self, content, *arguments):
        code, (report,) = diagnose("prompt", QUESTION, "--against", self.write(content), *arguments)
        self.assertEqual((code, report["verdict"]), (0, "pass"), report)

    def expect_suspect(self, content, suspect, *arguments):
        code, (report,) = diagnose("prompt", QUESTION, "--against", self.write(content), *arguments)
        self.assertEqual((code, report["verdict"]), (1, "finding"), report)
        suspects = [line for line in report["evidence"] if line.startswith("suspect: ")]
        self.assertTrue(any(suspect in line for line in suspects), suspects)
        self.assertTrue(report["ends_run"])

    def test_every_form_of_the_same_prompt_passes(self):
        text, ids = prompt_of(QUESTION)
        for content in (text, ids, " ".join(map(str, ids)), {"tokens": ids, "count": len(ids)},
                        {"prompt_token_ids": ids}, {"input_ids": [ids]}):
            self.expect_same(content)

    def test_a_last_new_line_is_not_dropped(self):
        # An editor's, or that of "<think>\n", with which the templates of R1 and V3.1 end: once it was dropped without a word.
        text, _ = prompt_of(QUESTION)
        self.expect_suspect(text + "\n", "printf")
        self.expect_suspect(text + "\n", "thinking priming")
        self.expect_suspect(text + "\n\n", "new lines")

    def test_another_bos_in_the_configuration_is_named(self):
        shutil.copytree(TINY, self.directory, dirs_exist_ok=True)
        path = self.directory / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**config, "bos_token_id": 5}), encoding="utf-8")
        process = dsv4("-m", self.directory, "diagnose", "prompt")
        self.assertEqual(process.returncode, 1)
        self.assertIn("config.json names 5 as bos_token_id", process.stdout)
        process = dsv4("-m", self.directory, "run", "Hi", "--max-tokens", 1)
        self.assertEqual(process.returncode, 0)
        self.assertIn("config.json names 5 as bos_token_id", process.stderr)

    def test_usual_suspects_in_texts(self):
        text, _ = prompt_of(QUESTION)
        self.expect_suspect(text.removeprefix(BOS), "no <｜begin▁of▁sentence｜>")
        self.expect_suspect(BOS + text, "twice")
        self.expect_suspect(text.removesuffix("<think>"), "thinking priming")
        self.expect_suspect(text.replace("<｜User｜>", "<｜User｜>\n"), "new lines")
        self.expect_suspect(text.replace("<｜User｜>", "<｜User｜> "), "blanks")
        self.expect_suspect(prompt_of(QUESTION, "--thinking-mode", "chat")[0], "chat mode")
        self.expect_suspect(prompt_of(QUESTION, "--effort", "max")[0], "effort max")
        self.expect_suspect("user: " + QUESTION, "no <｜begin▁of▁sentence｜>")
        self.expect_suspect(text + "The", "goes on")
        effort = ("--effort", "max")
        self.expect_suspect(prompt_of(QUESTION, *effort, "--revision", "v4-0731")[0], "revision v4-0731", *effort,
                            "--revision", "v4")

    def test_usual_suspects_in_ids(self):
        _, ids = prompt_of(QUESTION)
        self.expect_suspect(ids[1:], "no <｜begin▁of▁sentence｜>")
        self.expect_suspect([ids[0], *ids], "twice")
        self.expect_suspect(ids[:-1], "thinking priming")
        # The marker as user text is not special, so its ids are those of a split marker.
        _, marked = prompt_of("<think>")
        self.expect_suspect(ids[:-1] + marked[2:-2], "split into ordinary tokens")

    def test_the_first_difference_is_named(self):
        _, ids = prompt_of(QUESTION)
        ids[5] += 1
        _, (report,) = diagnose("prompt", QUESTION, "--against", self.write(ids))
        self.assertIn("from token 5 on", report["headline"])

    def test_a_tokenizer_without_a_marker_cannot_be_diagnosed(self):
        for file in filter(pathlib.Path.is_file, TINY.iterdir()):
            shutil.copy(file, self.directory)
        path = self.directory / "tokenizer.json"
        path.write_text(path.read_text(encoding="utf-8").replace("<think>", "<thonk>"), encoding="utf-8")
        process = dsv4("-m", self.directory, "diagnose", "prompt")
        self.assertEqual(process.returncode, 3)
        self.assertIn("<think>", process.stderr)


class StopSet(WithDirectory):
    def test_ids_and_origins_are_listed(self):
        code, (report,) = diagnose("stop-set")
        self.assertEqual(code, 0)
        rows = report["tables"][0]["rows"]
        self.assertEqual([row[1] for row in rows], ['"<｜end▁of▁sentence｜>"', '"<｜User｜>"'])
        self.assertIn("config.json", rows[0][2])
        self.assertIn("defensive", rows[1][2])

    def test_a_missed_turn_end_is_found(self):
        _, ids = prompt_of(QUESTION)
        end, user = (int(row[0]) for row in diagnose("stop-set")[1][0]["tables"][0]["rows"])
        for answer, code in (([50, 51, end], 0), ([50, 51], 0), ([50, end, 51], 1), ([50, user, 51, 52], 1)):
            for log in (answer, ids + answer):
                got, (report,) = diagnose("stop-set", QUESTION, "--log", self.write(log))
                self.assertEqual(got, code, report)
        self.assertIn("2 more follow", report["headline"])

    def test_a_marker_in_ordinary_tokens_is_found(self):
        _, marked = prompt_of("<｜User｜>")
        code, (report,) = diagnose("stop-set", "--log", self.write([50, *marked[2:-2], 51]))
        self.assertEqual(code, 1)
        self.assertIn("ordinary tokens", report["headline"])

    def test_files_that_name_another_end_token_are_found(self):
        for file in filter(pathlib.Path.is_file, TINY.iterdir()):
            shutil.copy(file, self.directory)
        (self.directory / "generation_config.json").write_text('{"eos_token_id": [0, 17]}', encoding="utf-8")
        code, (report,) = diagnose("stop-set", "-m", self.directory)
        self.assertEqual(code, 1)
        self.assertIn("generation_config.json names 17", report["headline"])


class Compare(WithDirectory):
    def test_a_dump_compares_clean_with_the_run_it_is_of(self):
        tokens = self.write(list(range(40, 80)))
        for command in (("logits", "--tokens", tokens, "--output", self.directory / "x.npy"),
                        ("diagnose", "stop-set", "--tokens", tokens, "--min-tokens", "0")):
            dump = self.directory / f"dump-{command[0]}"
            process = dsv4(*command, "--dump", dump)
            self.assertEqual(process.returncode, 0, process.stderr)
            for mode in ((), ("--shared",)):
                code, (report,) = diagnose("compare", "--with", dump, "--bound", "0", *mode)
                self.assertEqual(code, 0, report)
        self.assertEqual(dsv4(*command, "--dump", dump).returncode, 3)  # It is there already.

    def test_dumps_of_transformers_compare_clean_and_altered_ones_do_not(self):
        for name, directory, bound in (("tf_narrow", ROOT / "tests/golden/models/tf_narrow", "1e-5"), ("tiny", TINY, "2e-5")):
            model = ("-m", directory, "--numerics", "plain")
            dump = HERE / "transformers_dump" / name
            code, (report,) = diagnose("compare", *model, "--with", dump, "--bound", bound)
            self.assertEqual(code, 0, report)
            if name == "tf_narrow":  # The other one has no logits.
                self.assertIn("top-1 agrees at 40 of 40 positions", " ".join(report["evidence"]))

            data = (dump / f"{name}.safetensors").read_bytes()
            (length,) = struct.unpack("<Q", data[:8])
            header = json.loads(data[8:8 + length])
            altered_tensors = self.altered_tensors(header)
            self.assertGreater(len(altered_tensors), 6)
            for layer, tensor in altered_tensors:
                begin, end = header[f"layers.{layer}.{tensor}"]["data_offsets"]
                values = struct.unpack(f"<{(end - begin) // 4}f", data[8 + length + begin:8 + length + end])
                altered = bytearray(data)
                altered[8 + length + begin:8 + length + end] = struct.pack(f"<{len(values)}f", *(value * 1.01 for value in values))
                (self.directory / "altered.safetensors").write_bytes(altered)
                code, (report,) = diagnose("compare", *model, "--with", self.directory)
                self.assertEqual(code, 1, (name, layer, tensor))
                self.assertEqual((report["place"]["layer"], report["place"]["tensor"]), (layer, tensor))

    @staticmethod
    def altered_tensors(header):
        """Output of each layer, and for the first layer of each kind the outputs of its attention and its compressors."""
        layers = sorted({int(name.split(".")[1]) for name in header if name.startswith("layers.")})
        left = next(name for name in ("ffn.streams", "ffn.out") if f"layers.0.{name}" in header)
        chosen = [(layer, left) for layer in layers]
        kinds = set()
        for layer in layers:
            inside = tuple(name for name in ("attn.indexer.compressor.pooled", "attn.compressor.pooled", "attn.out")
                           if f"layers.{layer}.{name}" in header)
            if inside not in kinds:
                chosen += [(layer, name) for name in inside]
            kinds.add(inside)
        return chosen

    def test_other_numerics_differ_and_the_place_is_named(self):
        code, (report,) = diagnose("compare", "--with-numerics", "plain", "--min-tokens", "40", "--bound", "1e-6")
        self.assertEqual(code, 1)
        self.assertIn("layer", report["place"])
        self.assertTrue(any(line.startswith("logits: KL") for line in report["evidence"]), report["evidence"])

    def test_backends_agree(self):
        for numerics in ("release", "plain"):
            for mode in ((), ("--shared",)):
                code, (report,) = diagnose("compare", "--backend", "cpu", "--with-backend", "reference", "--numerics", numerics,
                                           "--min-tokens", "140", *mode)
                self.assertEqual(code, 0, report)

    def test_an_op_is_exchanged(self):
        """The reference's linears differ from the CPU backend's by rounding: found with a bound of 0, and only there."""
        common = ("--min-tokens", "20", "--ab")
        code, (report,) = diagnose("compare", *common, "linear=reference")
        self.assertEqual(code, 0, report)
        self.assertIn("the other run: the same backend with linear of reference", report["evidence"])
        code, (report,) = diagnose("compare", *common, "linear=reference", "--ab", "rope=scalar", "--shared", "--bound", "0")
        self.assertEqual((code, report["place"]["op"]), (1, "linear"), report)

    def test_every_op_is_exchanged_in_turn(self):
        code, (report,) = diagnose("compare", "--min-tokens", "20", "--ab", "each=reference")
        self.assertEqual(code, 0, report)
        (table,) = report["tables"]
        self.assertEqual(table["columns"][:3], ["op", "calls", "logits' error"])
        self.assertGreaterEqual(len(table["rows"]), 18)
        moved = {row[0] for row in table["rows"] if float(row[2]) > 0}
        self.assertIn("linear", moved)
        self.assertNotIn("embed", moved)
        code, (report,) = diagnose("compare", "--min-tokens", "20", "--ab", "each=reference", "--bound", "1e-9")
        self.assertEqual((code, report["place"]["op"]), (1, table["rows"][0][0]))

    def test_ops_and_variants_that_are_not_there_are_named(self):
        for arguments, wanted in ((("swish=scalar",), "routed_experts"), (("attention=fast",), "reference, scalar"),
                                  (("attention",), "reference, scalar"), (("prepare_weight=scalar",), "embed"),
                                  (("each=reference", "--ab", "rope=scalar"), "stands alone"),
                                  (("rope=reference", "--ab", "rope=scalar"), "a second time"),
                                  (("each=reference", "--shared"), "--ab OP=VARIANT --shared"),
                                  (("rope=reference", "--backend", "reference"), "uses that already")):
            process = dsv4("diagnose", "compare", "--ab", *arguments)
            self.assertEqual(process.returncode, 2, arguments)
            self.assertIn(wanted, process.stderr)

    def test_nothing_to_compare_with_is_no_finding(self):
        code, (report,) = diagnose("compare")
        self.assertEqual((code, report["verdict"]), (0, "not applicable"))

    def test_bad_dumps_are_bad_input(self):
        self.assertEqual(dsv4("diagnose", "compare", "--with", self.directory).returncode, 3)
        self.assertEqual(dsv4("diagnose", "compare", "--with", self.directory / "absent").returncode, 3)


class Commands(WithDirectory):
    def test_all_is_clean_and_in_order_on_the_small_model(self):
        code, reports = diagnose("all", "--min-tokens", "140")
        self.assertEqual(code, 0, [report["headline"] for report in reports])
        self.assertEqual([report["check"] for report in reports],
                         ["files", "prompt", "stop-set", "sampler", "scale-invariance", "residual", "visible", "decode-prefill",
                          "compare", "knowledge", "indexer", "router", "checkpoint"])
        self.assertEqual({report["verdict"] for report in reports}, {"pass"})
        self.assertIn("reference backend, 140 of 140 tokens", " ".join(reports[-5]["evidence"]))

    def test_all_stops_at_a_wrong_prompt(self):
        code, reports = diagnose("all", "--against", self.write("another prompt"))
        self.assertEqual(code, 1)
        self.assertEqual([report["check"] for report in reports], ["files", "prompt"])

    def test_text_says_the_verdict_first(self):
        process = dsv4("diagnose", "scale-invariance", "--min-tokens", "0")
        self.assertEqual(process.returncode, 0)
        self.assertTrue(process.stdout.startswith("scale-invariance: pass: "), process.stdout)

    def test_tokens_can_come_from_a_file(self):
        code, (report,) = diagnose("visible", "--tokens", self.write([5, 6, 7]), "--min-tokens", "0", "--layer", "1")
        self.assertEqual(code, 0)
        self.assertEqual(report["tables"][0]["rows"][0][:3], ["1", "swa", "0..2"])

    def test_visible_looks_at_one_pass_of_a_long_prompt(self):
        code, (report,) = diagnose("visible", "--min-tokens", "520", "--layer", "0")
        self.assertEqual(code, 0)
        self.assertIn("the first 512 of 520 tokens", report["evidence"][-1])

    def test_exit_codes(self):
        for code, arguments in ((2, ("no-such-check",)), (2, ()), (2, ("visible", "--layer", "99")),
                                (2, ("visible", "--position", "-1")), (2, ("decode-prefill", "--chunk", "0")),
                                (3, ("prompt", "--against", "/no/such/file")), (3, ("stop-set", "--log", self.write("text"))),
                                (3, ("prompt", "--against", self.write('{"ids": [1]}'))),
                                (3, ("residual", "--tokens", self.write([999999]))), (3, ("prompt", "-m", "/no/such/model"))):
            process = dsv4("diagnose", *arguments)
            self.assertEqual(process.returncode, code, (arguments, process.stderr))
            self.assertNotEqual(process.stderr, "")


if __name__ == "__main__":
    unittest.main()
