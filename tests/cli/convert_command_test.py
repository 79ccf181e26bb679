"""`dsv4 convert` as people use it: bit-identical logits where it says lossless, killed and resumed, faults."""

import json
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from dsv4_process import BINARY, ROOT, TINY, dsv4, dsv4_json, read_npy

GOLDEN = ROOT / "tests" / "golden" / "models"
JOURNAL = "dsv4-convert.journal"


def files(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


class Convert(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.path = Path(temporary.name)
        self.tokens = self.path / "tokens"
        self.tokens.write_text(" ".join(str(i) for i in range(3, 23)))

    def synth(self, name, *arguments):
        directory = self.path / name
        process = dsv4("synth", directory, *arguments)
        self.assertEqual(process.returncode, 0, process.stderr)
        return directory

    def logits(self, directory, *arguments):
        output = self.path / "logits.npy"
        process = dsv4("logits", "-m", directory, "--tokens", self.tokens, "--output", output, *arguments)
        self.assertEqual(process.returncode, 0, process.stderr)
        return read_npy(output)[1]

    def test_lossless_conversions_give_the_same_logits_bit_for_bit(self):
        """In plain numerics. Release numerics round activations in front of FP8 and MXFP4, but not of NVFP4 and bf16."""
        plain = ("--backend", "reference", "--numerics", "plain")
        sources = {"tiny": TINY, "release": self.synth("release", "--format", "release"),
                   "fp8": self.synth("fp8", "--format", "fp8"), "bf16": self.synth("bf16", "--format", "bf16")}
        cases = [("tiny", "keep", "bf16"), ("tiny", "keep", "keep"), ("release", "nvfp4", "keep"), ("release", "bf16", "bf16"),
                 ("release", "fp8", "keep"), ("fp8", "bf16", "bf16"), ("bf16", "keep", "keep")]
        for source, experts, dense in cases:
            with self.subTest(source=source, experts=experts, dense=dense):
                destination = self.path / f"{source}-{experts}-{dense}"
                report = dsv4_json("convert", sources[source], destination, "--experts", experts, "--dense", dense, "--json")
                self.assertTrue(report["lossless"], report)
                self.assertEqual(self.logits(destination, *plain), self.logits(sources[source], *plain))
                if experts == "keep" and dense == "keep":
                    self.assertEqual(self.logits(destination), self.logits(sources[source]))

    def test_lossy_conversions_say_so_and_change_the_logits(self):
        destination = self.path / "out"
        report = dsv4_json("convert", TINY, destination, "--dense", "nvfp4", "--json")
        self.assertFalse(report["lossless"])
        module = next(module for module in report["modules"] if module["module"] == "attn.wo_b")
        self.assertEqual((module["from"], module["to"]), ("fp8-block [128, 128] F8_E8M0", "nvfp4"))
        self.assertTrue(0.05 < module["relative_rms"] < 0.1, module)
        self.assertRegex(module["worst"]["tensor"], r"^layers\.\d+\.attn\.wo_b$")
        self.assertEqual(module["clipped"], 0)
        formats = dsv4_json("inspect", "-m", destination, "--json")["formats"]
        self.assertEqual(list(formats["attn.wo_b"]), ["nvfp4"])
        self.assertEqual(list(formats["ffn.experts.w1"]), ["nvfp4"])
        self.assertNotEqual(self.logits(destination), self.logits(TINY))
        # The converted model still speaks.
        answer = dsv4_json("run", "-m", destination, "What is the capital of France?", "--temperature", "0", "--json")
        self.assertIn("Paris", answer["content"])

    def test_the_search_of_scales_pays(self):
        errors = {}
        for scales in ("amax", "mse"):
            report = dsv4_json("convert", TINY, self.path / scales, "--dense", "nvfp4", "--scales", scales, "--json")
            errors[scales] = {module["module"]: module["relative_rms"] for module in report["modules"] if not module["kept"]}
        for module, amax in errors["amax"].items():
            print(f"{module}: relative RMS amax {amax:.4f}, mse {errors['mse'][module]:.4f}")
            self.assertLess(errors["mse"][module], 0.92 * amax)

    def test_text_report(self):
        process = dsv4("convert", TINY, self.path / "out", "--dense", "bf16")
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertRegex(process.stdout, r"attn\.wo_b +7  fp8-block \[128, 128\] F8_E8M0 -> bf16: lossless")
        self.assertIn("lossless: every value", process.stdout)
        self.assertEqual(process.stderr, "")

    def test_killed_at_any_moment_it_resumes_to_the_same_files(self):
        source = self.synth("source", "--shape", "mini", "--layers", 1, "--format", "release")
        arguments = ("convert", source, "--experts", "nvfp4", "--dense", "nvfp4", "--max-shard-bytes", 100_000_000)
        whole = dsv4_json(*arguments[:2], self.path / "whole", *arguments[2:], "--json")
        self.assertEqual(whole["resumed_bytes"], 0)
        destination = self.path / "killed"
        partial = self.path / "killed.partial"
        for lines in (3, 20):
            process = subprocess.Popen([BINARY, *map(str, arguments[:2]), destination, *map(str, arguments[2:])],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            deadline = time.monotonic() + 600
            while time.monotonic() < deadline and process.poll() is None:
                journal = partial / JOURNAL
                if journal.exists() and journal.read_bytes().count(b"\n") >= lines:
                    break
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.assertFalse(destination.exists(), "it ended before it could be killed")
            self.assertTrue(partial.exists())
        # Another source and other options are refused, and what was done stays.
        before = (partial / JOURNAL).read_bytes()
        refused = dsv4("convert", TINY, destination, *arguments[2:])
        self.assertEqual(refused.returncode, 2)
        self.assertIn("another source", refused.stderr)
        refused = dsv4("convert", source, destination, "--experts", "fp8")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("was begun with", refused.stderr)
        self.assertEqual((partial / JOURNAL).read_bytes(), before)
        report = dsv4_json(*arguments[:2], destination, *arguments[2:], "--json")
        self.assertGreater(report["resumed_bytes"], 0)
        self.assertEqual(report["modules"], whole["modules"])
        self.assertEqual(files(destination), files(self.path / "whole"))
        self.assertFalse(partial.exists())

    def test_ctrl_c_keeps_what_is_done(self):
        source = self.synth("source", "--shape", "mini", "--layers", 1, "--format", "release")
        destination = self.path / "out"
        process = subprocess.Popen([BINARY, "convert", source, destination, "--experts", "nvfp4", "--dense", "nvfp4"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not (self.path / "out.partial" / JOURNAL).exists():
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertIn("the same command resumes", errors)
        self.assertEqual(dsv4("convert", source, destination, "--experts", "nvfp4", "--dense", "nvfp4").returncode, 0)

    def test_a_disk_that_takes_no_more(self):
        """A limit on file size stands for it: the kernel refuses the same calls."""
        destination = self.path / "out"

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))

        process = subprocess.run([BINARY, "convert", TINY, destination], capture_output=True, text=True, preexec_fn=limit,
                                 restore_signals=False, timeout=600, check=False)
        self.assertEqual(process.returncode, 1, process.stderr)
        self.assertIn("make room for", process.stderr)
        self.assertFalse(destination.exists())
        self.assertEqual(dsv4("convert", TINY, destination).returncode, 0)

    def test_faulty_sources_leave_nothing(self):
        source = self.path / "source"
        shutil.copytree(GOLDEN / "fp8_mxfp4", source)
        model = source / "model.safetensors"
        whole = model.read_bytes()
        for content in (whole[:-1], b"", whole[:8] + b"\xff" * 8 + whole[16:]):
            model.write_bytes(content)
            process = dsv4("convert", source, self.path / "out", "--experts", "nvfp4")
            self.assertEqual(process.returncode, 3, process.stderr)
            self.assertIn("model.safetensors", process.stderr)
        model.write_bytes(whole)
        (source / "config.json").write_text("{}")
        self.assertEqual(dsv4("convert", source, self.path / "out").returncode, 3)
        self.assertEqual(dsv4("convert", self.path / "none", self.path / "out").returncode, 3)
        self.assertEqual(sorted(path.name for path in self.path.iterdir()), ["source", "tokens"])

    def test_usage(self):
        for arguments in ((), (TINY,), (TINY, self.path / "out", "--experts", "int4"),
                          (TINY, self.path / "out", "--dense", "mxfp4"), (TINY, self.path / "out", "--max-shard-bytes", 0)):
            self.assertEqual(dsv4("convert", *arguments).returncode, 2, arguments)
        occupied = self.path / "occupied"
        occupied.mkdir()
        (occupied / "precious").write_text("x")
        refused = dsv4("convert", TINY, occupied)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("not an empty directory", refused.stderr)
        self.assertEqual(files(occupied), {"precious": b"x"})

    def test_the_report_is_json(self):
        process = dsv4("convert", TINY, self.path / "out", "--json")
        report = json.loads(process.stdout)
        self.assertEqual(report["draft_and_vision_tensors"], sum(
            tensors["tensors"] for tensors in dsv4_json("inspect", "-m", TINY, "--json")["skipped"].values()))


if __name__ == "__main__":
    unittest.main()
