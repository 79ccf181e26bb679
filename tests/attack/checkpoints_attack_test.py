"""Model directories that mean harm: what stands where a file should, and weights that no number comes out of."""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

from dsv4_process import ROOT, TINY, dsv4

sys.path.insert(0, str(ROOT / "tests" / "diag"))
from safetensors_copy import Copy  # noqa: E402


class Directories(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.model = self.directory / "model"

    def run_model(self, *arguments):
        return dsv4("run", "-m", self.model, "Hi", "--max-tokens", 1, *arguments)

    def expect_refusal(self, *wanted):
        process = self.run_model()
        self.assertEqual(process.returncode, 3, process.stderr)
        self.assertEqual(process.stdout, "")
        for text in wanted:
            self.assertIn(text, process.stderr)


class Files(Directories):
    def test_what_is_no_file_is_refused_at_once(self):
        for name in ("config.json", "tokenizer.json", "generation_config.json", "model.safetensors"):
            for make, wanted in ((os.mkfifo, "not a regular file"), (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
                                 (os.mkdir, ""), (lambda path: path.symlink_to("/proc/kmsg"), "")):
                with self.subTest(name=name, wanted=wanted):
                    shutil.copytree(TINY, self.model)
                    (self.model / name).unlink()
                    make(self.model / name)
                    self.expect_refusal(name, wanted)
                    shutil.rmtree(self.model)

    def test_files_that_are_too_long_are_refused_unread(self):
        # One of 4 GiB once took 2 GiB of memory and was ignored then; one of 1 TiB took all there was.
        for name in ("config.json", "tokenizer.json", "generation_config.json"):
            with self.subTest(name=name):
                shutil.copytree(TINY, self.model)
                os.truncate(self.model / name, 1 << 40)
                self.expect_refusal(name)
                shutil.rmtree(self.model)

    def test_directories_that_may_not_be_searched(self):
        if os.geteuid() == 0:
            self.skipTest("root may")
        shutil.copytree(TINY, self.model)
        self.model.chmod(0o600)
        self.addCleanup(self.model.chmod, 0o700)
        self.expect_refusal("Permission denied")


class Numbers(Directories):
    def logits(self):
        ids, output = self.directory / "ids", self.directory / "logits.npy"
        ids.write_text("0 5 9 77")
        process = dsv4("logits", "-m", self.model, "--tokens", ids, "--output", output)
        return process, output

    def test_logits_that_are_no_numbers_are_an_error_that_names_the_op(self):
        # They were written, and the exit code was 0.
        for name, code, place in (("layers.3.attn.wo_b.weight", b"\x7f", "layer 3, attn.out (op linear), position 0"),
                                  ("layers.2.attn.wkv.weight", b"\x7f", "layer 2, attn.kv_a (op linear), position 0"),
                                  ("head.weight", b"\xc0\x7f", "logits")):
            with self.subTest(name=name):
                copy = Copy(TINY, self.model)
                copy.bytes(name)[:len(code)] = code
                copy.save()
                process, output = self.logits()
                self.assertEqual(process.returncode, 1, process.stderr)
                self.assertIn(place, process.stderr)
                self.assertFalse(output.exists())
                process = self.run_model("--temperature", 0)
                self.assertEqual(process.returncode, 1, process.stderr)
                self.assertIn("dsv4 diagnose residual", process.stderr)
                shutil.rmtree(self.model)

    def test_healthy_logits_are_written(self):
        shutil.copytree(TINY, self.model)
        process, output = self.logits()
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertTrue(output.exists())

    def test_configurations_that_no_op_can_compute_with(self):
        for key, value in (("rms_norm_eps", 0), ("rms_norm_eps", 1e-320), ("swiglu_limit", 1e-320), ("tie_word_embeddings", True)):
            with self.subTest(key=key, value=value):
                shutil.copytree(TINY, self.model)
                path = self.model / "config.json"
                path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
                self.expect_refusal(key)
                self.assertEqual(dsv4("inspect", "-m", self.model).returncode, 3)
                shutil.rmtree(self.model)


if __name__ == "__main__":
    unittest.main()
