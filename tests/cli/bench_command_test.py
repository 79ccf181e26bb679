"""`dsv4 bench` on the small model: what its report holds, and what it refuses."""

import json
import pathlib
import statistics
import tempfile
import unittest

from dsv4_process import TINY, dsv4, dsv4_json

SMALL = ("bench", "--repeat", "2", "--prefill", "3,40", "--depth", "0,600", "--batch", "1,3")


class Bench(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.report = dsv4_json(*SMALL, "--profile", "--json")

    def row(self, **wanted):
        (row,) = [row for row in self.report["rows"] if all(row[key] == value for key, value in wanted.items())]
        return row

    def test_every_row_asked_for_is_there(self):
        rows = [(row["kind"], row["depth"], row["batch"], row["tokens"]) for row in self.report["rows"]]
        self.assertEqual(rows, [("prefill", 0, 1, 3), ("prefill", 0, 1, 40), ("decode", 0, 1, 1), ("decode", 0, 3, 1),
                                ("decode", 600, 1, 1), ("decode", 600, 3, 1)])
        for row in self.report["rows"]:
            self.assertGreaterEqual(len(row["seconds"]), 2)
            self.assertAlmostEqual(row["median_seconds"], statistics.median(row["seconds"]))
            self.assertAlmostEqual(row["tokens_per_second"], row["batch"] * row["tokens"] / row["median_seconds"])

    def test_the_output_was_checked(self):
        (check,) = self.report["checks"]
        self.assertEqual((check["layers"], check["depth"]), (4, 600))
        self.assertGreater(check["worst_cosine"], 0.99)
        self.assertGreater(check["worst_error"], 0)  # Equal bits would mean that both ran on one backend.
        unchecked = dsv4("bench", "--prefill", "none", "--depth", "0", "--batch", "1", "--repeat", "1", "--check", "off")
        self.assertEqual(unchecked.returncode, 0, unchecked.stderr)
        self.assertIn("UNCHECKED", unchecked.stdout)

    def test_a_rank_by_itself(self):
        def bench(*arguments):
            return dsv4("bench", "--repeat", "1", *arguments, "--loopback-ranks", "2")

        alone = dsv4_json("bench", "--repeat", "1", "--depth", "64", "--rows", "1,4", "--check", "off", "--json")
        rank = json.loads(bench("--depth", "64", "--rows", "1,4", "--json").stdout)
        self.assertEqual((rank["checks"], rank["loopback_ranks"]), ("UNCHECKED", 2))
        for of_rank, whole in zip(rank["rows"], alone["rows"], strict=True):
            self.assertLess(of_rank["weight_bytes"], 0.75 * whole["weight_bytes"])
        batch = bench("--depth", "64", "--prefill", "16", "--batch", "1,3")
        self.assertEqual(batch.returncode, 0, batch.stderr)
        self.assertIn("UNCHECKED: rank 0 of 2", batch.stdout)
        steps = bench("--speculation", "dspark:5", "--acceptance", "0.9,0.8,0.7,0.6,0.5", "--depth", "8")
        self.assertEqual(steps.returncode, 0, steps.stderr)
        self.assertIn("verifying 6 rows", steps.stdout)
        for wrong in (("--ranks", "2"), ("--placement", "expert"), ("--check", "off")):
            self.assertEqual(bench(*wrong).returncode, 2, wrong)

    def test_bytes_and_multiply_adds_are_what_the_step_needs(self):
        files = sum(path.stat().st_size for path in TINY.glob("*.safetensors"))
        one, three, deep = self.row(depth=0, batch=1, kind="decode"), self.row(depth=0, batch=3), self.row(depth=600, batch=1)
        self.assertLess(one["weight_bytes"], three["weight_bytes"])  # More experts are chosen.
        self.assertLess(three["weight_bytes"], files)
        self.assertLess(one["cache_bytes"], deep["cache_bytes"])
        # All but attention is the same work for each token.
        self.assertAlmostEqual(three["multiply_adds"] / one["multiply_adds"], 3, delta=0.1)
        percent = one["weight_bytes"] + one["cache_bytes"]
        percent *= 100 / one["median_seconds"] / one["machine_read_bytes_per_second"]
        self.assertAlmostEqual(one["read_percent"], percent)

    def test_the_profile_adds_up(self):
        for row in self.report["rows"]:
            for key in ("weight_bytes", "cache_bytes", "multiply_adds"):
                self.assertAlmostEqual(sum(op[key] for op in row["ops"]) / row[key] if row[key] else 1, 1)
            self.assertGreater(sum(op["seconds"] for op in row["ops"]), 0)
            self.assertEqual({op["op"] for op in row["ops"]} & {"embed", "linear", "attention", "routed_experts", "hc_head"},
                             {"embed", "linear", "attention", "routed_experts", "hc_head"})

    def test_the_summary_has_the_ratios_of_the_rows(self):
        summary = {line["what"]: line["value"] for line in self.report["summary"]}
        self.assertAlmostEqual(summary["decode, depth 600, batch 3 / batch 1"],
                               self.row(depth=600, batch=3)["tokens_per_second"] / self.row(depth=600, batch=1)["tokens_per_second"])
        self.assertAlmostEqual(summary["decode, depth 600, batch 3 / depth 0"],
                               self.row(depth=600, batch=3)["median_seconds"] / self.row(depth=0, batch=3)["median_seconds"])
        self.assertIn("prefill 40", summary)
        self.assertGreater(self.report["memory"]["peak_bytes"], self.report["memory"]["states_bytes"])

    def test_a_batch_is_compared_with_what_its_bytes_allow(self):
        (line,) = [line for line in self.report["summary"] if line["what"] == "decode, depth 600, batch 3 / batch 1"]
        one, three = ({key: row[key] for key in ("weight_bytes", "cache_bytes")}
                      for row in (self.row(depth=600, batch=1), self.row(depth=600, batch=3)))
        self.assertAlmostEqual(line["bound"], 3 * sum(one.values()) / sum(three.values()))
        self.assertGreater(line["bound"], 1)

    def test_the_text_holds_the_same(self):
        process = dsv4(*SMALL, "--profile")
        self.assertEqual(process.returncode, 0, process.stderr)
        for words in ("checked against the reference", "routed_experts", "batch 3 / batch 1", "memory"):
            self.assertIn(words, process.stdout)

    def test_rounds_are_merged(self):
        arguments = ("bench", "--json", "--repeat", "2", "--prefill", "4", "--depth", "0", "--batch", "2", "--profile", "--check", "off")
        one, three = dsv4_json(*arguments), dsv4_json(*arguments, "--rounds", "3")
        self.assertEqual(len(three["rows"]), len(one["rows"]))
        for once, thrice in zip(one["rows"], three["rows"]):
            self.assertEqual([(op["op"], op["detail"]) for op in once["ops"]], [(op["op"], op["detail"]) for op in thrice["ops"]])
            if once["kind"] == "prefill":
                self.assertEqual(once["weight_bytes"], thrice["weight_bytes"])
                self.assertIn(len(thrice["seconds"]), (2, 4, 6))  # Rounds on a busy machine may be left out.

    def test_plain_numerics_and_the_reference_backend(self):
        for arguments in (("--numerics", "plain"), ("--backend", "reference")):
            report = dsv4_json("bench", "--json", "--repeat", "1", "--prefill", "none", "--depth", "9", "--batch", "2", *arguments)
            self.assertGreater(report["checks"][0]["worst_cosine"], 0.99)
            self.assertEqual(len(report["rows"]), 1)

    def test_tiers_are_compared_in_one_run(self):
        if "avx2" not in pathlib.Path("/proc/cpuinfo").read_text():
            self.skipTest("this machine has one tier")
        report = dsv4_json("bench", "--json", "--repeat", "1", "--prefill", "none", "--depth", "0", "--batch", "1", "--isa", "avx2,scalar")
        self.assertEqual([check["backend"] for check in report["checks"]], ["cpu (avx2)", "cpu (scalar)"])
        fast, slow = report["rows"]
        (line,) = [line for line in report["summary"] if line["what"] == "decode, depth 0, batch 1, cpu (scalar) / cpu (avx2)"]
        self.assertAlmostEqual(line["value"], slow["median_seconds"] / fast["median_seconds"])
        self.assertEqual(fast["weight_bytes"], slow["weight_bytes"])  # The same tokens.

    def test_bad_values_are_usage_errors(self):
        for arguments in (("--prefill", "0"), ("--prefill", "4,4"), ("--depth", "-1"), ("--depth", "2x"), ("--batch", "1,,2"),
                          ("--batch", ""), ("--depth", "99999999999999999999"), ("--repeat", "0"), ("--repeat", "61"), ("--rounds", "0"), ("--check", "maybe"),
                          ("--isa", "sse"), ("--isa", "avx2,avx2"), ("--isa", "avx2", "--backend", "reference")):
            with self.subTest(arguments):
                process = dsv4("bench", *arguments)
                self.assertEqual(process.returncode, 2, process.stdout)
                self.assertEqual(process.stdout, "")
                self.assertIn(arguments[0], process.stderr)

    def test_lengths_beyond_the_model_are_usage_errors(self):
        limit = json.loads((TINY / "config.json").read_text())["max_position_embeddings"]
        process = dsv4("bench", "--json", "--batch", "1", "--prefill", "none", "--depth", limit - 60)  # And 61 steps.
        self.assertEqual(process.returncode, 2)
        self.assertEqual(process.stdout, "")
        self.assertIn(f"the model has {limit} positions", process.stderr)

    def test_speculation_gives_the_same_answers_and_says_what_it_gained(self):
        text = "the quick brown fox jumps over the lazy dog and runs into the dark wood " * 3
        with tempfile.TemporaryDirectory() as directory:
            prompts = pathlib.Path(directory) / "prompts.jsonl"
            lines = [{"kind": "quote", "messages": [{"role": "user", "content": f"Quote: {text}"}], "answer": text},
                     {"messages": [{"role": "user", "content": "What is the capital of France?"}]}]
            prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
            report = dsv4_json("bench", "--speculation", "suffix:4", "--prompts", prompts, "--repeat", "2", "--json")
            quote, other = report["rows"]
            self.assertEqual((quote["kind"], quote["given_answers"], other["kind"], other["given_answers"]), ("quote", True, "prompts", False))
            self.assertGreater(quote["tokens_a_step"], 2)
            self.assertLess(quote["steps"], quote["tokens"])
            self.assertGreater(quote["drafted"], 0)
            self.assertTrue(0.5 < quote["acceptance"]["suffix"][0] <= 1 and len(quote["acceptance"]["suffix"]) == 4, quote)
            self.assertGreater(other["answers"], 4)  # Seven tokens are not 0.4 s.
            report = dsv4_json("bench", "--speculation", "suffix:4", "--prompts", prompts, "--repeat", "2", "--prompt-seconds", "0", "--json")
            self.assertEqual([row["answers"] for row in report["rows"]], [4, 4])
            self.assertAlmostEqual(quote["ratio"], quote["serial_seconds"] / quote["drafted_seconds"])
            for speculation in ("auto", "suffix:4"):  # `auto` drafts nothing where a busy machine says that it does not pay.
                process = dsv4("bench", "--speculation", speculation, "--prompts", prompts, "--repeat", "1")
                self.assertEqual(process.returncode, 0, process.stderr)
                self.assertIn("All answers are the same", process.stdout)
            self.assertRegex(process.stdout, r"drafts right by depth: [01]\.\d\d")
            for wrong, said in (('{"messages": [], "x": 1}', "'x'"), ("{}", "no messages"), ("[]", "object"), ("", "no prompt"),
                                ('{"messages": [{"role": "user", "content": "a"}], "answer": "a"}', "two tokens")):
                prompts.write_text(wrong, encoding="utf-8")
                process = dsv4("bench", "--speculation", "auto", "--prompts", prompts)
                self.assertEqual(process.returncode, 3, wrong)
                self.assertIn(said, process.stderr)

    def test_steps_of_several_rows_and_whole_steps_at_a_given_acceptance_have_a_price(self):
        report = dsv4_json("bench", "--rows", "1..3", "--depth", "130", "--repeat", "2", "--check", "off", "--json")
        self.assertEqual([(row["kind"], row["depth"], row["tokens"]) for row in report["rows"]], [("rows", 130, n) for n in (1, 2, 3)])
        self.assertEqual([line["what"] for line in report["summary"] if "/ 1 row" in line["what"]],
                         ["2 rows, depth 130 / 1 row", "3 rows, depth 130 / 1 row"])
        report = dsv4_json("bench", "--speculation", "mtp:2", "--acceptance", "1,0", "--depth", "130", "--json")
        self.assertEqual((report["drafts"], report["acceptance_given"], report["tokens_a_step"]), (2, [1, 0], 2))
        self.assertAlmostEqual(report["ratio"], 2 * report["serial_seconds"] / (report["drafting_seconds"] + report["verifying_seconds"]))
        process = dsv4("bench", "--weights", "synthetic:tiny", "--speculation", "mtp:2", "--acceptance", "0.5", "--depth", "1")
        self.assertEqual(process.returncode, 3)
        self.assertIn("no draft tensors", process.stderr)
        process = dsv4("bench", "--weights", "synthetic:tiny,nvfp4-experts,mtp", "--speculation", "mtp", "--acceptance", "0.5,0.2", "--depth", "1")
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("0.5, 0.2 GIVEN, not measured: 2 drafts", process.stdout)
        report = dsv4_json("bench", "--weights", "synthetic:tiny,dspark", "--speculation", "dspark:5", "--acceptance", "1", "--depth", "130", "--json")
        self.assertEqual((report["drafter"], report["drafts"], report["tokens_a_step"]), ("dspark", 5, 6))

    def test_weights_that_no_memory_holds_are_refused_before_they_are_made(self):
        # Terabytes.
        weights = "synthetic:pro,bf16"
        process = dsv4("bench", "--weights", weights, "--prefill", "16", "--depth", "0", "--batch", "1")
        self.assertEqual(process.returncode, 1, process.stderr)
        self.assertIn(f"{weights}: weights that are made stay in memory: ", process.stderr)
        self.assertIn("fewer layers (--max-layers) want less", process.stderr)
        self.assertNotIn("Comparing", process.stderr)

    def test_wrong_uses_of_speculation_are_refused(self):
        for arguments in (("--speculation", "auto"), ("--speculation", "off", "--prompts", "x"), ("--speculation", "mtp:99", "--prompts", "x"), ("--speculation", "suffix", "--acceptance", "0.5"), ("--speculation", "mtp", "--acceptance", "1.5"), ("--speculation", "mtp", "--acceptance", "0.5", "--depth", "0"),
                          ("--acceptance", "0.5"), ("--rows", "1..99"), ("--rows", "1..2", "--batch", "1"),
                          ("--prompts", "x"), ("--prompt-seconds", "1"), ("--speculation", "auto", "--prompts", "x", "--depth", "0")):
            self.assertEqual(dsv4("bench", *arguments).returncode, 2, arguments)


if __name__ == "__main__":
    unittest.main()
