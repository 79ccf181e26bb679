"""Random models of both architectures against NumPy programs that are not part of this repository (../shared/oracle beside the checkout).

Shapes follow from DSV4_TEST_SEED (48) and DSV4_TEST_MODELS (20). Each runs on the reference and the CPU backend, in both numerics, as one
prefill, in chunks and token by token. Needs NumPy (tools/requirements.txt); skipped without it, or without the oracles.
"""

import importlib.util
import json
import os
import pathlib
import random
import sys
import tempfile
import unittest

from dsv4_process import ROOT, dsv4, rerun_in_venv

try:
    import numpy as np
except ImportError:
    rerun_in_venv("tools/requirements.txt")

ORACLES = pathlib.Path(os.environ.get("DSV4_ORACLES", ROOT.parent / "shared" / "oracle"))
if not (ORACLES / "v41_numpy.py").exists():
    print(f"skipped: no oracles in {ORACLES}")
    sys.exit(77)
sys.path += [str(ROOT / "tools"), str(ROOT / "tools/golden")]

import encode  # noqa: E402
import random_v41  # noqa: E402
import release_models  # noqa: E402
from random_model import Shape  # noqa: E402

SEED, COUNT = int(os.environ.get("DSV4_TEST_SEED", "48")), int(os.environ.get("DSV4_TEST_MODELS", "20"))
# 1 - cosine that passes, median and 5th percentile. In release numerics the oracle's own noise counts, of sums in fp32 in another order.
PLAIN = (1e-5, 1e-4)
RELEASE_OF_V41 = {"reference": (1.5e-5, 1e-4), "cpu": (3e-5, 2e-4)}
RELEASE_OF_V4 = {backend: (7e-5, 4e-4) for backend in RELEASE_OF_V41}
TIMES_NOISE = 4


def oracle(name):
    spec = importlib.util.spec_from_file_location(name, ORACLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


V4, V41 = oracle("v4_numpy"), oracle("v41_numpy")


def apart(a, b):
    """Median and 95th percentile of 1 - cosine by position."""
    a, b = a.reshape(-1, a.shape[-1]).astype(np.float64), b.reshape(-1, b.shape[-1]).astype(np.float64)
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return 1 - np.median(cosines), 1 - np.percentile(cosines, 5)


class Model:
    """A random model in a folder, and what an oracle says of it."""

    def __init__(self, draw, folder):
        self.folder, self.draw = folder, draw
        self.seed = draw.randrange(1 << 30)
        self.ids = np.random.default_rng(self.seed).integers(0, 64, draw.choice((40, 70, 140)))
        self.make(folder)

    def dsv4(self, *arguments):
        process = dsv4("logits", "-m", self.folder, "--tokens", self.folder / "tokens.json", "--output", self.folder / "out.npy", *arguments)
        if process.returncode != 0:
            raise AssertionError(f"{self}: {process.stderr}")
        return np.load(self.folder / "out.npy")


class ModelOfV4(Model):
    bounds = RELEASE_OF_V4

    def make(self, folder):
        draw = self.draw
        heads, groups = draw.choice((2, 4)), draw.choice((1, 2))
        self.shape = Shape([draw.choice((0, 4, 4, 128)) for _ in range(draw.randrange(1, 5))], num_hash_layers=draw.randrange(3), heads=heads,
                           o_groups=groups, o_lora=128 // groups, window=draw.choice((8, 24, 128)), index_topk=draw.choice((4, 12)), experts=draw.choice((3, 4, 6)),
                           experts_per_token=draw.choice((1, 2, 3)), swiglu_limit=draw.choice((0.8, 10.0)), route_scale=draw.choice((1.5, 2.5)))
        self.shape.num_hash_layers = min(self.shape.num_hash_layers, len(self.shape.ratios))
        experts = draw.choice(("mxfp4", "nvfp4"))
        golden = release_models.Golden("random", self.shape, self.seed, experts, "fp8", quantization=release_models.FP8, extra_config={"expert_dtype": "fp4"})
        release_models.write(golden, self.seed, folder)
        (folder / "tokens.json").write_text(json.dumps(self.ids.tolist()))
        self.drafts = False

    def run(self, **options):
        return V4.Run(V4.Model(str(self.folder)), **options).forward(self.ids)

    def noise(self):
        return apart(self.run(acc32=True), self.run())

    def __str__(self):
        return f"{self.shape}"


class ModelOfV41(Model):
    bounds = RELEASE_OF_V41

    def make(self, folder):
        draw = self.draw
        ratios = [0] * draw.randrange(3)
        sources = []
        for ratio in sorted(draw.sample((1, 2, 4), draw.choice((1, 2, 3))), reverse=True):
            sources.append(len(ratios))
            ratios += [ratio] * draw.randrange(1, 4)
        selectors = sorted({*sources, *(i for i in range(sources[0], len(ratios)) if draw.random() < 0.3)})
        heads = draw.choice((2, 4))
        engram = sorted(draw.sample(range(len(ratios)), min(len(ratios), draw.choice((0, 1, 2)))))
        self.shape = random_v41.Shape41(
            ratios, sources, selectors, draw.choice((None, sources[-1])), candidate_blocks=draw.choice((2, 3)), candidate_block_size=draw.choice((2, 8)),
            hidden=draw.choice((64, 96, 128)), heads=heads, head_dim=draw.choice((64, 96)), rope_dim=draw.choice((32, 64)), q_lora=draw.choice((32, 64)),
            o_groups=draw.choice((1, 2)), window=draw.choice((8, 16, 24)), index_heads=draw.choice((1, 4)), index_dim=draw.choice((32, 64)),
            index_topk=draw.choice((2, 6, 12)), experts=draw.choice((3, 4, 6)), experts_per_token=draw.choice((1, 2, 3)), inter=draw.choice((32, 64, 96)),
            gate_temp=draw.choice((0.5, 1.0, 1.7)), swiglu_limit=draw.choice((0.8, 10.0)), engram_layers=engram, engram_ngram=draw.choice((2, 3, 4)),
            engram_heads=draw.choice((1, 2, 3)), dspark_stages=3 if len(ratios) >= 3 and draw.random() < 0.3 else 0,
            release_formats=draw.random() < 0.8, calm=0.05)
        self.shape.rope_dim = min(self.shape.rope_dim, self.shape.index_dim)
        self.classes = (np.arange(self.shape.vocab), self.shape.vocab)
        rows = []
        if engram:
            table = V41.Engram(random_v41.config(self.shape, [], 0), *self.classes)
            rows = [int(sum(p for sizes in layer for p in sizes)) for layer in table.prime]
        flat = random_v41.config(self.shape, rows, 0)
        # No tokenizer: every id is a class of its own.
        flat.pop("engram_compressed_vocab_size", None)
        (folder / "config.json").write_text(json.dumps(random_v41.nested(flat) if draw.random() < 0.5 else flat))
        encode.write_safetensors(folder / "model.safetensors", random_v41.tensors(self.shape, rows, self.seed), {"format": "pt"})
        (folder / "tokens.json").write_text(json.dumps(self.ids.tolist()))
        self.drafts = self.shape.dspark_stages > 0

    def running(self, **options):
        return V41.Run(V41.Model(str(self.folder)), self.classes if self.shape.engram_layers else None, **options)

    def run(self, **options):
        return self.running(**options).forward(self.ids)

    def drafted(self, **options):
        return self.running(**options).draft(self.ids, np.append(self.ids[1:], 0), range(len(self.ids) - 1))[1]

    def noise(self):
        return apart(self.run(acc32="blocks"), self.run())

    def __str__(self):
        return f"{self.shape}"


class RandomModels(unittest.TestCase):
    def judge(self, model, numerics, wanted, bounds):
        """Largest of median and 95th percentile, on both backends; every cut has the bits of one prefill."""
        worst = (0.0, 0.0)
        for backend in ("reference", "cpu"):
            common = ("--backend", backend, "--numerics", numerics)
            got = model.dsv4(*common)
            found = apart(got, wanted)
            worst = max(worst, found)
            for value, bound in zip(found, bounds[backend], strict=True):
                self.assertLessEqual(value, bound, f"{backend}, {numerics}: {model}")
            for cut in (("--chunk", 7), ("--decode-from", 5)):
                self.assertTrue(np.array_equal(model.dsv4(*common, *cut), got), f"{backend}, {numerics}, {cut}: {model}")
        return worst

    def test_logits(self):
        draw = random.Random(SEED)
        for number in range(COUNT):
            kind = ModelOfV4 if number % 4 == 3 else ModelOfV41
            with self.subTest(number=number), tempfile.TemporaryDirectory() as folder:
                model = kind(random.Random(draw.randrange(1 << 60)), pathlib.Path(folder))
                plain = self.judge(model, "plain", model.run(release=False), {"reference": PLAIN, "cpu": PLAIN})
                noise = model.noise()
                bounds = {backend: tuple(max(bound, TIMES_NOISE * own) for bound, own in zip(of, noise, strict=True)) for backend, of in model.bounds.items()}
                release = self.judge(model, "release", model.run(), bounds)
                print(f"{number:3} {kind.__name__:10} {len(model.shape.ratios)} layers: plain {plain[0]:.1e} {plain[1]:.1e}, "
                      f"release {release[0]:.1e} {release[1]:.1e}, noise {noise[0]:.1e} {noise[1]:.1e}", flush=True)
                if model.drafts:
                    for backend in ("reference", "cpu"):
                        got = model.dsv4("--backend", backend, "--numerics", "plain", "--draft", "dspark", "--drafts", 5)
                        self.assertLess(np.abs(got - model.drafted(release=False)).max(), 2e-3, f"drafts on {backend}: {model}")


if __name__ == "__main__":
    unittest.main(warnings="ignore")
