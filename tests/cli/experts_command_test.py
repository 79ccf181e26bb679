"""`dsv4 experts profile`: counts of a text's choices, where they are kept, what is refused; and what --experts refuses without a GPU."""

import json
import pathlib
import tempfile
import unittest

from dsv4_process import TINY, dsv4, dsv4_json

TEXT = "Paris is the capital of France. Die Hauptstadt von Österreich ist Wien. 東京は日本の首都です。\n" * 8


class ExpertsCommand(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.text = self.folder / "text.txt"
        self.text.write_text(TEXT)
        self.config = json.loads((TINY / "config.json").read_text())

    def profile(self, *arguments, env=None):
        return dsv4_json("experts", "profile", "-m", TINY, "--text", self.text, "--json", *arguments, env=env)

    def test_every_token_chooses_as_many_experts_in_every_layer(self):
        output = self.folder / "a" / "profile.json"
        report = self.profile("--output", output)
        kept = json.loads(output.read_text())
        self.assertEqual(kept["tokens"], report["tokens"])
        self.assertEqual(len(kept["counts"]), self.config["num_hidden_layers"])
        for counts in kept["counts"]:
            self.assertEqual(len(counts), self.config["n_routed_experts"])
            self.assertEqual(sum(counts), report["tokens"] * self.config["num_experts_per_tok"])
        shares = [row["share"] for row in report["shares"]]
        self.assertEqual(shares, sorted(shares))
        most = max(kept["counts"][0]) / sum(kept["counts"][0])
        self.assertGreater(most, 1 / self.config["n_routed_experts"])
        self.assertLessEqual(shares[-1], 1)

    def test_what_a_text_chooses_depends_neither_on_passes_nor_on_threads(self):
        reports = []
        for i, arguments in enumerate(((), ("--pass-tokens", 7), ("--threads", 1))):
            output = self.folder / f"{i}.json"
            self.profile("--output", output, *arguments)
            reports.append(json.loads(output.read_text())["counts"])
        self.assertEqual(reports[0], reports[1])
        self.assertEqual(reports[0], reports[2])
        # Another window is another context.
        self.profile("--output", self.folder / "w.json", "--window", 16)
        counts = json.loads((self.folder / "w.json").read_text())["counts"]
        self.assertEqual([sum(layer) for layer in counts], [sum(layer) for layer in reports[0]])
        self.assertNotEqual(counts, reports[0])

    def test_the_models_own_file_is_named_after_its_folder(self):
        state = self.folder / "state"
        report = self.profile(env={"XDG_STATE_HOME": str(state)})
        (kept,) = (state / "dsv4" / "expert-profiles").glob("*.json")
        self.assertEqual(report["path"], str(kept))
        self.assertTrue(kept.name.startswith("tiny-"), kept)
        report = self.profile(env={"DSV4_EXPERT_PROFILES": str(self.folder / "other")})
        self.assertEqual(pathlib.Path(report["path"]).parent, self.folder / "other")
        process = dsv4("experts", "profile", "-m", TINY, "--text", self.text, env={"DSV4_EXPERT_PROFILES": ""})
        self.assertEqual(process.returncode, 2)
        self.assertIn("--output", process.stderr)

    def test_text_for_people(self):
        process = dsv4("experts", "profile", "-m", TINY, "--text", "-", "--output", self.folder / "x.json", stdin=TEXT)
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("of 16 experts of a layer that were chosen most often have", process.stdout)

    def test_refusals(self):
        self.text.write_text("")
        for arguments, code, words in (
                (("profile",), 2, "--text"),
                (("forget", "--text", self.text), 2, "profile"),
                (("profile", "--text", self.folder / "none"), 3, "none"),
                (("profile", "--text", self.text, "--output", self.folder / "x"), 3, "no text"),
                (("profile", "--text", self.text, "--experts", "cached=4", "--output", self.folder / "x"), None, "wants a GPU"),
                (("profile", "--text", self.text, "--host-memory", "4", "--output", self.folder / "x"), None, "wants a GPU")):
            with self.subTest(arguments=arguments):
                if words == "wants a GPU":
                    self.text.write_text(TEXT)
                process = dsv4("experts", *arguments, "-m", TINY)
                self.assertNotEqual(process.returncode, 0)
                if code is not None:
                    self.assertEqual(process.returncode, code, process.stderr)
                self.assertIn(words, process.stderr)

    def test_inspect_plans_cached_experts(self):
        def plan(experts, *arguments):
            return dsv4_json("inspect", "-m", TINY, "--backend", "cuda", "--experts", experts, "--gpu-memory", 3, "--json", *arguments)["experts"]
        cached = plan("cached=100%")
        self.assertEqual((cached["resident"], cached["cached"], cached["host"]), (0, 16, 0))
        self.assertEqual(cached["slots"], 16 * self.config["num_hidden_layers"])
        self.assertGreater(cached["gpu"]["expert_cache"], 0)
        self.assertEqual(cached["host_bytes"], 0)
        some = plan("cached=50%,host=25%,slots=50%")
        self.assertEqual((some["resident"], some["cached"], some["host"]), (4, 8, 4))
        self.assertEqual(some["slots"], 8 * self.config["num_hidden_layers"] // 2)
        self.assertAlmostEqual(2 * some["cached_bytes"], cached["cached_bytes"])
        self.assertLess(some["gpu"]["expert_cache"], cached["gpu"]["expert_cache"])
        process = dsv4("inspect", "-m", TINY, "--backend", "cuda", "--experts", "cached=100%", "--gpu-memory", 2.2)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("want the 16 of one layer at least", process.stderr)

    def test_longer_passes_take_more_scratch(self):
        def gpu(*arguments):
            return dsv4_json("inspect", "-m", TINY, "--backend", "cuda", "--experts", "cached=100%", "--gpu-memory", 6, "--json",
                             *arguments)["experts"]["gpu"]
        usual = gpu()
        self.assertEqual(gpu("--pass-tokens", 512)["scratch"], usual["scratch"])
        self.assertEqual(gpu("--pass-tokens", 16384)["scratch"], 2 * usual["scratch"])
        # Tokens that do not fit the smaller GPU leave slots away.
        process = dsv4("inspect", "-m", TINY, "--backend", "cuda", "--experts", "cached=100%", "--gpu-memory", 4, "--pass-tokens", 16384)
        self.assertNotEqual(process.returncode, 0)

    def test_inspect_says_how_long_sequences_may_be(self):
        def longest(gigabytes):
            return dsv4_json("inspect", "-m", TINY, "--backend", "cuda", "--experts", "cached=100%,slots=16", "--gpu-memory", gigabytes,
                             "--json")["experts"]["longest_context"]
        self.assertGreater(longest(2.45), longest(2.4))
        self.assertLess(longest(2.45), self.config["max_position_embeddings"])

    def test_gpus_of_other_sizes_are_arithmetic(self):
        def steps(*arguments):
            sizes = dsv4_json("inspect", "--weights", "synthetic:flash,nvfp4-experts", "--max-layers", 6, "--gpu-sizes", "4,10,20,40",
                               "--json", *arguments)["gpu_sizes"]
            self.assertTrue(sizes["computed"])
            return sizes["steps"]
        missing, *fitting = steps()
        self.assertIn("beside the routed experts", missing["missing"])
        rates = [step["tokens_per_second"] for step in fitting]
        self.assertEqual(rates, sorted(rates))
        self.assertEqual(fitting[-1]["split"], "resident=256,host=0")
        self.assertEqual(fitting[-1]["bound"], "GPU")
        # The sum of what a step reads, over the rates that were given.
        slow = steps("--gpu-rate", 1500)[-1]
        self.assertAlmostEqual(slow["tokens_per_second"], fitting[-1]["tokens_per_second"] / 2, delta=0.01 * slow["tokens_per_second"])
        hosts = steps("--host-rate", 1000, "--link-rate", 1)[1]
        self.assertIn("host=", hosts["split"])
        text = dsv4("inspect", "-m", TINY, "--gpu-sizes", "24").stdout
        self.assertIn("computed and not measured", text)

    def test_bench_counts_what_the_disk_reads(self):
        report = dsv4_json("bench", "-m", TINY, "--experts", "disk", "--prefill", "none", "--depth", 0, "--batch", 1, "--check", "off", "--repeat", 3,
                           "--json")
        (row,) = report["rows"]
        disk = row["disk"]
        expert = 3 * self.config["hidden_size"] * self.config["moe_intermediate_size"] / 2
        chosen = self.config["num_hidden_layers"] * self.config["num_experts_per_tok"] * expert
        self.assertGreaterEqual(disk["chosen_bytes"] / disk["steps"], chosen)
        self.assertGreater(disk["bytes_per_second"], 0)
        self.assertGreaterEqual(disk["read_bytes"], 0)
        self.assertNotIn("disk", dsv4_json("bench", "-m", TINY, "--prefill", "none", "--depth", 0, "--batch", 1, "--check", "off", "--json")["rows"][0])

    def test_experts_on_disk_are_in_files(self):
        self.text.write_text("1 2 3")
        for arguments, words in ((("--weights", "synthetic:tiny"), "is in no file"), (("-m", TINY, "--backend", "cuda"), "want cpu")):
            process = dsv4("logits", *arguments, "--experts", "disk", "--tokens", self.text, "--output", self.folder / "x.npy")
            self.assertNotEqual(process.returncode, 0)
            self.assertIn(words, process.stderr)


if __name__ == "__main__":
    unittest.main()
