"""`dsv4 diagnose knowledge` and `files`: wrong checkpoints are found with nothing to compare with, and healthy ones pass. All of
weight_faults.py is gone through by faults_without_reference.py."""

import hashlib
import json
import pathlib
import shutil
import tempfile
import unittest

from dsv4_process import TINY, dsv4, dsv4_json
from safetensors_copy import Copy
from weight_faults import FAULTS

# Each breaks answers, and its statistics are those of a healthy model. The layer is where it was done.
DAMAGED = {"embedding and head exchanged": None, "head one row off": None, "signs of hc_attn_fn": None, "rotary part of wkv in front": None}


def check(name, *arguments):
    process = dsv4("diagnose", name, *arguments, "--json")
    if process.returncode not in (0, 1):
        raise AssertionError(f"exit code {process.returncode}: {process.stderr}")
    (report,) = json.loads(process.stdout)["checks"]
    return report


class WithDirectory(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.model = self.directory / "model"

    def copy(self, source=TINY):
        shutil.rmtree(self.model, ignore_errors=True)
        shutil.copytree(source, self.model)
        return self.model


class Knowledge(WithDirectory):
    def test_the_small_model_knows_and_says_so(self):
        for options in ((), ("--numerics", "plain")):
            report = check("knowledge", *options)
            self.assertEqual(report["verdict"], "pass", report)
            self.assertIn("16 of 16 answers", " ".join(report["evidence"]))

    def test_damage_that_keeps_the_statistics_is_found(self):
        for name in DAMAGED:
            with self.subTest(fault=name):
                copy = Copy(TINY, self.model)
                FAULTS[name](copy)
                copy.save()
                report = check("knowledge", "-m", self.model)
                self.assertEqual(report["verdict"], "finding", report)
                shutil.rmtree(self.model)

    def test_random_weights_and_missing_layers_say_nothing(self):
        self.assertEqual(dsv4("synth", self.model, "--shape", "tiny", "--layers", 2).returncode, 0)
        for arguments in (("-m", self.model), ("--weights", "synthetic:tiny"), ("--max-layers", 3)):
            self.assertEqual(check("knowledge", *arguments)["verdict"], "not applicable")


class Files(WithDirectory):
    def expect(self, verdict, *wanted):
        report = check("files", "-m", self.model)
        self.assertEqual(report["verdict"], verdict, report)
        for text in wanted:
            self.assertIn(text, report["headline"] + " ".join(report["evidence"]))

    def change(self, name):
        path = self.model / name
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)

    def test_a_release_that_is_known(self):
        for source in (TINY, TINY.parent / "tiny-v41"):
            self.copy(source)
            self.expect("pass", f"tokenizer.json: that of models/{source.name} ")
            self.change("model.safetensors")
            self.expect("finding", f"model.safetensors is not the file of models/{source.name} of this repository")

    def test_other_files_have_no_digest(self):
        self.copy()
        config = json.loads((self.model / "config.json").read_text())
        (self.model / "config.json").write_text(json.dumps(config))
        self.change("model.safetensors")
        self.expect("not applicable")

    def test_sha256sums(self):
        self.copy()
        (self.model / "config.json").write_text((self.model / "config.json").read_text() + "\n")
        digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(self.model.iterdir()) if path.is_file()}
        (self.model / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
        self.expect("pass", f"{len(digests)} files")
        self.change("model.safetensors")
        self.expect("finding", "model.safetensors is not the file of SHA256SUMS")
        (self.model / "model.safetensors").rename(self.model / "other")
        self.expect("finding", "model.safetensors is missing: SHA256SUMS names it")

    def test_what_the_hub_leaves(self):
        self.copy()
        config = (self.model / "config.json").read_bytes() + b"\n"
        (self.model / "config.json").write_bytes(config)
        records = self.model / ".cache" / "huggingface" / "download"
        records.mkdir(parents=True)
        blob = hashlib.sha1(b"blob %d\0" % len(config) + config).hexdigest()
        large = hashlib.sha256((self.model / "model.safetensors").read_bytes()).hexdigest()
        (records / "config.json.metadata").write_text(f"{'c' * 40}\n{blob}\n1.0\n")
        (records / "model.safetensors.metadata").write_text(f"{'c' * 40}\n{large}\n1.0\n")
        self.expect("pass", "2 files")
        self.change("config.json")
        self.expect("finding", "config.json is not the file of the hub's metadata")

    def test_the_hubs_cache(self):
        self.copy()
        (self.model / "config.json").write_text((self.model / "config.json").read_text() + "\n")
        blobs = self.directory / "blobs"
        blobs.mkdir()
        data = (self.model / "model.safetensors").read_bytes()
        blob = blobs / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        (self.model / "model.safetensors").unlink()
        (self.model / "model.safetensors").symlink_to(f"../blobs/{blob.name}")
        self.expect("pass", "1 file")
        blob.write_bytes(data[:-1] + b"\1")
        self.expect("finding", "model.safetensors is not the file of the hub's cache")

    def test_all_begins_with_the_files(self):
        self.assertEqual(dsv4_json("diagnose", "all", "--max-layers", 2, "--min-tokens", 20, "--json")["checks"][0]["check"], "files")


if __name__ == "__main__":
    unittest.main()
