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
        (kept,) = (state / "dsv4" / "expert-profiles").iterdir()
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
                (("profile", "--text", self.text, "--experts", "cached=4", "--output", self.folder / "x"), None, "want cuda"),
                (("profile", "--text", self.text, "--host-memory", "4", "--output", self.folder / "x"), None, "want cuda")):
            with self.subTest(arguments=arguments):
                if words == "want cuda":
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


if __name__ == "__main__":
    unittest.main()
