"""`dsv4 synth` writes what it promises, and `dsv4 inspect` says what is there."""

import hashlib
import json
import math
import os
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

from checkpoint import Checkpoint

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ["DSV4_BINARY"]
# Formats of the attention's wq_a, the compressor's wkv and the experts.
FORMATS = {
    "bf16": ("bf16", "bf16", "bf16"),
    "f32": ("f32", "f32", "f32"),
    "fp8": ("fp8-block [128, 128] F8_E8M0", "bf16", "fp8-block [128, 128] F8_E8M0"),
    "fp8-base": ("fp8-block [128, 128] F32", "bf16", "fp8-block [128, 128] F32"),
    "release": ("fp8-block [128, 128] F8_E8M0", "bf16", "mxfp4"),
    "nvfp4-experts": ("fp8-block [128, 128] F8_E8M0", "bf16", "nvfp4"),
    "nvfp4": ("nvfp4", "nvfp4", "nvfp4"),
    "nvfp4-ct": ("nvfp4", "nvfp4", "nvfp4"),
}


def dsv4(*arguments):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=600, check=False)


class Synth(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.path = Path(temporary.name)

    def synth(self, name, *arguments):
        directory = self.path / name
        process = dsv4("synth", directory, *arguments)
        self.assertEqual(process.returncode, 0, process.stderr)
        return directory

    def inspect(self, directory, *arguments):
        process = dsv4("inspect", "-m", directory, "--json", *arguments)
        self.assertEqual(process.returncode, 0, process.stderr)
        return json.loads(process.stdout)

    def digest(self, directory):
        return hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()

    def test_every_format_is_what_it_says_and_gives_finite_logits(self):
        tokens = self.path / "tokens"
        tokens.write_text(" ".join(str(i) for i in range(1, 14)))
        for name, (attention, compressor, experts) in FORMATS.items():
            with self.subTest(format=name):
                directory = self.synth(name, "--format", name)
                report = self.inspect(directory)
                self.assertEqual(list(report["formats"]["attn.wq_a"]), [attention])
                self.assertEqual(list(report["formats"]["attn.compressor.wkv"]), [compressor])
                self.assertEqual(report["formats"]["ffn.experts.w2"][experts]["tensors"], 32)
                self.assertEqual(report["disagreements"], [])
                output = self.path / f"{name}.npy"
                process = dsv4("logits", "-m", directory, "--tokens", tokens, "--output", output)
                self.assertEqual(process.returncode, 0, process.stderr)
                raw = output.read_bytes()
                (header,) = struct.unpack("<H", raw[8:10])
                logits = struct.unpack(f"<{(len(raw) - 10 - header) // 4}f", raw[10 + header:])
                self.assertTrue(all(map(math.isfinite, logits)))
                deviation = math.sqrt(sum(value * value for value in logits) / len(logits))
                self.assertTrue(0.05 < deviation < 20, deviation)

    def test_the_seed_decides_and_layers_do_not_disturb_each_other(self):
        first = self.synth("first", "--seed", 7)
        self.assertEqual(self.digest(first), self.digest(self.synth("again", "--seed", 7)))
        self.assertNotEqual(self.digest(first), self.digest(self.synth("other", "--seed", 8)))
        # Texts end as the tokenizer beside the weights says.
        config, tokenizer = (json.loads((first / name).read_text()) for name in ("config.json", "tokenizer.json"))
        ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
        self.assertEqual((config["bos_token_id"], config["eos_token_id"]), (ids["<｜begin▁of▁sentence｜>"], ids["<｜end▁of▁sentence｜>"]))
        whole = Checkpoint.read(first).tensors
        for name, tensor in Checkpoint.read(self.synth("short", "--seed", 7, "--layers", 2)).tensors.items():
            self.assertEqual(tensor.data, whole[name].data, name)

    def test_refuses_what_it_cannot_do_and_leaves_nothing_behind(self):
        occupied = self.path / "occupied"
        occupied.mkdir()
        (occupied / "precious").write_text("x")
        self.assertEqual(dsv4("synth", occupied).returncode, 2)
        self.assertEqual([path.name for path in occupied.iterdir()], ["precious"])
        self.assertEqual(dsv4("synth", self.path / "m", "--layers", 99).returncode, 2)
        self.assertEqual(dsv4("synth", self.path / "m", "--tokenizer", self.path / "none").returncode, 3)
        self.assertEqual(sorted(path.name for path in self.path.iterdir()), ["occupied"])

    def test_inspect_counts_and_plans(self):
        report = self.inspect(self.synth("m"), "--context", 100_000, "--batch", 3)
        self.assertEqual([layer["kind"] for layer in report["layers"]], ["swa", "swa", "csa", "hca"])
        self.assertEqual([layer["router"] for layer in report["layers"]], ["hash", "scored", "scored", "scored"])
        memory = report["memory"]
        self.assertEqual(memory["total_bytes"], memory["weights_bytes"] + 3 * memory["sequence_bytes"] + memory["step_bytes"])
        self.assertGreater(memory["step_bytes"], 0)
        # CSA: a row of 128 and an indexer key of 64 per 4 tokens; HCA: a row of 128 per 128; two bytes each.
        # A row of 128 is 64 codes, a scale and 64 bf16, in units of 16. A key of 64 is 32 bytes and 2 scales, in units of 4.
        self.assertEqual(memory["bytes_per_token"], (208 + 36) / 4 + 208 / 128)
        growth = memory["sequence_bytes"] - memory["sequence_fixed_bytes"]
        self.assertAlmostEqual(growth, memory["bytes_per_token"] * 100_000, delta=64 * 1024)
        experts = 3 * 8 * 128 * 128 * 4
        self.assertEqual(report["parameters"] - report["active_parameters"],
                         report["config"]["vocab_size"] * 128 + experts * 6 // 8)
        self.assertEqual(dsv4("inspect", "-m", self.path / "m", "--context", 2_000_000).returncode, 3)

    def test_inspect_knows_the_nodes_of_this_machine(self):
        numa = self.inspect(self.synth("m"))["numa"]
        online = Path("/sys/devices/system/node/online")
        if not online.exists():
            self.skipTest("this kernel knows no NUMA nodes")
        self.assertEqual(len(numa["nodes"]), len(list(online.parent.glob("node[0-9]*"))))
        self.assertEqual(sum(node["cpus"] for node in numa["nodes"]), os.cpu_count())
        self.assertLess(0, numa["nodes"][0]["free_bytes"])
        self.assertLess(numa["nodes"][0]["free_bytes"], numa["nodes"][0]["memory_bytes"])
        usable = [node for node in numa["nodes"] if node["usable_cpus"]]
        self.assertEqual(numa["interleave"], len(usable) > 1)

    def test_inspect_follows_max_layers_and_numerics(self):
        directory = self.synth("m")
        self.assertEqual(len(self.inspect(directory, "--max-layers", 2)["layers"]), 2)
        release, plain = (self.inspect(directory, "--numerics", n)["memory"]["bytes_per_token"] for n in ("release", "plain"))
        wide = self.inspect(directory, "--cache-rows", "wide")["memory"]["bytes_per_token"]
        self.assertEqual(wide, 2 * ((128 + 64) / 4 + 128 / 128))
        self.assertEqual(plain, 2 * wide)
        self.assertLess(release, 0.65 * wide)

    def test_inspect_tells_exact_transcodes_of_mxfp4(self):
        checkpoint = Checkpoint.read(self.synth("m", "--format", "nvfp4-experts"))
        report = self.inspect(self.path / "m")
        self.assertEqual(report["nvfp4"], {"tensors": 96, "lossless_mxfp4": 0})
        for name, tensor in checkpoint.tensors.items():
            # 2^5, 2^8, and the subnormal 2^-8 in adjacent pairs, under a global scale that is a power of two.
            if name.endswith(".weight_scale"):
                tensor.data = (b"\x60\x60\x78\x78\x02\x02\x00\x00" * len(tensor.data))[:len(tensor.data)]
            elif name.endswith(".weight_scale_2"):
                tensor.data = struct.pack("<f", 2.0**-12)
        odd = checkpoint.tensors["layers.1.ffn.experts.3.w1.weight_scale"]
        odd.data = b"\x60\x68" + odd.data[2:]  # A pair that differs.
        mantissa = checkpoint.tensors["layers.2.ffn.experts.3.w1.weight_scale"]
        mantissa.data = b"\x61\x61" + mantissa.data[2:]
        checkpoint.tensors["layers.3.ffn.experts.3.w1.weight_scale_2"].data = struct.pack("<f", 0.3)
        checkpoint.write(self.path / "edited")
        self.assertEqual(self.inspect(self.path / "edited")["nvfp4"], {"tensors": 96, "lossless_mxfp4": 93})

    def test_inspect_reports_what_the_config_gets_wrong(self):
        checkpoint = Checkpoint.read(self.synth("m", "--format", "nvfp4-experts"))
        del checkpoint.config["quantization_config"]["quantized_layers"]
        checkpoint.config["quantization_config"].pop("moe_quant_algo")
        checkpoint.config["quantization_config"].pop("quant_algo")
        checkpoint.write(self.path / "edited")
        (disagreement,) = self.inspect(self.path / "edited")["disagreements"]
        self.assertIn("96 NVFP4 linears", disagreement)

    def test_inspect_shows_skipped_draft_tensors(self):
        report = self.inspect(ROOT / "tests" / "golden" / "models" / "fp8_mxfp4")
        self.assertGreater(report["skipped"]["mtp."]["tensors"], 0)

    def test_inspect_says_whether_a_drafter_is_whole(self):
        self.assertIn("DSpark: 3 stages, blocks of 5, taps of layers 0, 1, 2, Markov rank 32",
                      self.inspect(ROOT / "tests" / "golden" / "models" / "dspark")["drafter"])
        self.assertEqual(self.inspect(self.synth("b", "--mtp"))["drafter"], "MTP: one block")
        whole = self.synth("d", "--dspark")
        self.assertIn("DSpark: 3 stages, blocks of 5", self.inspect(whole)["drafter"])
        checkpoint = Checkpoint.read(whole)
        del checkpoint.tensors["mtp.1.attn.attn_sink"]
        checkpoint.write(self.path / "part")
        self.assertIn("DSpark, not whole: ", self.inspect(self.path / "part")["drafter"])


if __name__ == "__main__":
    unittest.main()
