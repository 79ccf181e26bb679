"""`dsv4 diagnose indexer` and `router`: those that choose no better than chance are named, and healthy ones pass. All faults are gone through by
faults_without_reference.py."""

import pathlib
import shutil
import unittest

import v41_faults
import weight_faults
from dsv4_process import TINY, dsv4, dsv4_json
from knowledge_test import WithDirectory, check
from safetensors_copy import Copy

TINY_V41 = TINY.parent / "tiny-v41"
# The layer whose choice is no better than chance; of an exchange the first.
DAMAGED = {TINY: (weight_faults, {"whole indexer of another layer": 2, "index keys' wkv negated": 4, "indexer's wq_b negated": 4,
                                  "indexer's weights_proj, all zeros": 2}),
           TINY_V41: (v41_faults, {"indexer.wk transposed": 4, "indexer.wk.weight of the other source": 2, "indexer.wq_b of another selector": 4,
                                   "indexer's weights_proj negated": 4})}


class Indexer(WithDirectory):
    def test_indexers_that_were_trained_pass(self):
        for arguments in ((), ("--numerics", "plain"), ("--backend", "cpu", "--pass-tokens", 100), ("--max-layers", 5), ("-m", TINY_V41),
                          ("-m", TINY_V41, "--numerics", "plain"), ("-m", TINY_V41, "A question that the check does not read")):
            with self.subTest(arguments=arguments):
                report = check("indexer", *arguments)
                self.assertEqual(report["verdict"], "pass", report)
                self.assertIn("768 tokens", report["evidence"][0])
                self.assertGreater(min(float(row[-1]) for row in report["tables"][0]["rows"]), 0.6, report)

    def test_what_convert_writes_passes(self):
        for source in DAMAGED:
            dsv4_json("convert", source, self.model, "--experts", "nvfp4", "--dense", "nvfp4", "--json")
            for name in ("indexer", "router"):
                self.assertEqual(check(name, "-m", self.model)["verdict"], "pass")
            shutil.rmtree(self.model)

    def test_a_choice_by_chance_is_found(self):
        for source, (faults, damaged) in DAMAGED.items():
            for name, layer in damaged.items():
                with self.subTest(model=source.name, fault=name):
                    shutil.rmtree(self.model, ignore_errors=True)
                    copy = Copy(source, self.model)
                    faults.FAULTS[name](copy)
                    copy.save()
                    report = check("indexer", "-m", self.model)
                    self.assertEqual(report["verdict"], "finding", report)
                    self.assertIn(f"layer {layer}: its indexer's choice holds ", report["headline"])
                    self.assertEqual((report["place"]["layer"], report["place"]["tensor"]), (layer, "attn.indexer.selected"))

    def test_where_there_is_nothing_to_judge(self):
        self.assertEqual(dsv4("synth", self.model, "--shape", "mini41", "--layers", 4).returncode, 0)
        for arguments, why in ((("-m", self.model), "random"), (("--weights", "synthetic:tiny"), "random"), (("--max-layers", 2), "no layer chooses")):
            report = check("indexer", *arguments)
            self.assertEqual(report["verdict"], "not applicable", report)
            self.assertIn(why, report["headline"])

    def test_random_weights_that_do_not_say_so(self):
        for shape in ("mini41", "tiny"):
            with self.subTest(shape=shape):
                shutil.rmtree(self.model, ignore_errors=True)
                self.assertEqual(dsv4("synth", self.model, "--shape", shape, "--seed", 3).returncode, 0)
                path = pathlib.Path(self.model, "config.json")
                path.write_text(path.read_text().replace('"random_weights"', '"unknown_to_all"'))
                for name in ("indexer", "router"):
                    self.assertEqual(check(name, "-m", self.model)["verdict"], "not applicable")


ROUTERS = {TINY: (weight_faults, {"experts one off in a layer": (3,), "rows of a router reversed": (4,)}),
           TINY_V41: (v41_faults, {"rows of a router reversed": (4,), "a router negated": (4,), "routers of two layers exchanged": (2, 5),
                                   "experts of two layers exchanged": (2, 5)})}


class Router(WithDirectory):
    def test_routers_that_were_trained_pass(self):
        for arguments in ((), ("--numerics", "plain"), ("--pass-tokens", 40), ("--max-layers", 6), ("-m", TINY_V41), ("-m", TINY_V41, "--max-layers", 4)):
            with self.subTest(arguments=arguments):
                report = check("router", *arguments)
                self.assertEqual(report["verdict"], "pass", report)
                self.assertGreater(min(float(row[-1]) for row in report["tables"][0]["rows"]), 0.3, report)

    def test_a_router_of_other_experts_is_found(self):
        for source, (faults, damaged) in ROUTERS.items():
            for name, layers in damaged.items():
                with self.subTest(model=source.name, fault=name):
                    shutil.rmtree(self.model, ignore_errors=True)
                    copy = Copy(source, self.model)
                    faults.FAULTS[name](copy)
                    copy.save()
                    report = check("router", "-m", self.model)
                    self.assertEqual(report["verdict"], "finding", report)
                    self.assertEqual((report["place"]["layer"], report["place"]["tensor"]), (layers[0], "ffn.router.logits"))
                    said = " ".join(report["evidence"])
                    for layer in layers:
                        self.assertIn(f"layer {layer}: its router does not prefer", said)

    def test_where_there_is_nothing_to_judge(self):
        for arguments, why in ((("--weights", "synthetic:tiny"), "random"), (("--max-layers", 4), "2 layers route by score"),
                               (("--pass-tokens", 10), "a pass of 10 tokens")):
            report = check("router", *arguments)
            self.assertEqual(report["verdict"], "not applicable", report)
            self.assertIn(why, report["headline"])


if __name__ == "__main__":
    unittest.main()
