"""Model directories that mean harm: what stands where a file should, and weights that no number comes out of."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from dsv4_process import BINARY, PATIENCE, ROOT, TINY, dsv4

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
        # Root may, but for the two capabilities that say so.
        powerless = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
        if powerless and subprocess.run([*powerless, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("root that cannot give its capabilities away")
        shutil.copytree(TINY, self.model)
        self.model.chmod(0o600)
        self.addCleanup(self.model.chmod, 0o700)
        process = subprocess.run([*powerless, BINARY, "run", "-m", self.model, "Hi"], capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(process.returncode, 3, process.stderr)
        self.assertIn("Permission denied", process.stderr)


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

    def test_another_begin_of_sentence_is_said(self):
        # It was ignored without a word. The tokenizer's own is what the model was trained with.
        shutil.copytree(TINY, self.model)
        path = self.model / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "bos_token_id": 77}))
        process = self.run_model("--temperature", 0)
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("config.json names 77 as bos_token_id; <｜begin▁of▁sentence｜> of tokenizer.json is 2, which is used", process.stderr)

    def test_diagnose_of_random_weights_says_what_is_missing(self):
        binary = shutil.copy(BINARY, self.directory)  # Away from the source tree, so that there is no small model.
        process = subprocess.run([binary, "diagnose", "prompt", "--weights", "synthetic:tiny", "Hi"], capture_output=True, text=True,
                                 timeout=PATIENCE, check=False)
        self.assertEqual(process.returncode, 3, process.stdout)
        self.assertIn("synthetic:tiny has no tokenizer of its own: no model: neither -m DIR nor DSV4_MODEL is given", process.stderr)


if __name__ == "__main__":
    unittest.main()
