"""Writes the golden models of V4.1 with an oracle's logits: tests/golden/v41/<name>/.

The oracle is a NumPy program that is not part of this repository: `--oracle FILE` names it. It has `Model(directory)`, and
`Run(model, classes, release=..)` with `forward(ids)` and `draft(ids, next_ids, rows)`. A golden holds tokens.json, logits.{plain,release,exact}.npy
and, with a drafter, {logits,confidence}.dspark.{plain,release}.npy. `exact` is release numerics with double between the rounding points.
No order of summation in fp32 is in it, so that the reference backend has to have its very bits, however deep the model is.
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import encode  # noqa: E402
from random_v41 import Shape41, config, nested, tensors  # noqa: E402

OUT = Path(__file__).resolve().parents[2] / "tests/golden/v41"

# name: (shape, seed, tokens, nested config, note)
GOLDENS = {
    "shared": (Shape41([0, 0, 2, 2, 1, 1, 1, 1], [2, 4], [2, 4, 6], 4), 1, 96, True,
               "entries of ratio 2 and 1, keys from latents, candidates that bind; release formats"),
    "plain16": (Shape41([0, 2, 2, 2, 1, 1], [1, 3, 4], [1, 2, 3, 4, 5], None, heads=4, index_topk=4, gate_temp=1.7, calm=0.05, release_formats=False), 2, 72,
                False, "bf16 weights, the flat config, no candidates, a router with a temperature, two sources of one ratio"),
    "shallow": (Shape41([0, 2, 1], [1, 2], [1, 2], 2, calm=0.05), 3, 96, True, "calm and shallow: certifies roundings"),
    "engram": (Shape41([0, 0, 2, 2, 1, 1], [2, 4], [2, 4, 5], 4, engram_layers=[1, 3]), 5, 64, True,
               "n-gram tables in front of two layers"),
    "deep": (Shape41([0, 0, 4, 4, 2, 2, 1, 1, 1, 1], [2, 4, 6], [2, 4, 6, 7, 9], 6, engram_layers=[1, 5], calm=0.02), 6, 160, True,
             "ten layers of three ratios, candidates that bind, n-gram tables: every rounding, to the bit"),
    "dspark": (Shape41([0, 2, 1, 1, 1, 1], [1, 2], [1, 2], 2, dspark_stages=3), 4, 96, True, "a drafter of three stages with experts of its own"),
}


def _oracle(path: Path):
    spec = importlib.util.spec_from_file_location("v41_oracle", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _exact(oracle):
    """The oracle's release numerics with every op in double between its rounding points; what a tensor holds in fp32 is rounded to it."""

    class Exact(oracle.Run):
        def _in_double(self, op, *args):
            held, self.T = self.T, np.float64
            try:
                return op(*args)
            finally:
                self.T = held

        def norm(self, *args):
            return self._in_double(super().norm, *args)

        def rope(self, *args):
            return self._in_double(super().rope, *args)

        def mixes(self, *args):
            return tuple(x.astype(np.float32) for x in self._in_double(super().mixes, *args))

        def collapse(self, streams, pre):
            return self._in_double(super().collapse, streams, pre.astype(np.float64))

        def expand(self, streams, y, post, comb):
            return self._in_double(super().expand, streams, y, post.astype(np.float64), comb.astype(np.float64))

        def softmax(self, q, keys, mask, sink, window):
            return self._in_double(super().softmax, q, keys, mask, sink.astype(np.float64), window)

        def moe(self, *args):
            return self._in_double(super().moe, *args)

        def engram(self, *args):
            return self._in_double(super().engram, *args)

    return Exact


def make(oracle, name: str, out: Path) -> None:
    shape, seed, count, is_nested, note = GOLDENS[name]
    directory = out / name
    directory.mkdir(parents=True, exist_ok=True)
    # Neighbouring ids are of one class, as words in different case are.
    classes = np.arange(shape.vocab) // 2
    rows = []
    if shape.engram_layers:
        table = oracle.Engram(config(shape, [], 0), classes, int(classes.max()) + 1)
        rows = [int(sum(p for sizes in layer for p in sizes)) for layer in table.prime]
    flat = config(shape, rows, int(classes.max()) + 1)
    (directory / "config.json").write_text(json.dumps(nested(flat) if is_nested else flat, indent=1) + "\n")
    encode.write_safetensors(directory / "model.safetensors", tensors(shape, rows, seed), {"format": "pt"})
    ids = np.random.default_rng(seed).integers(0, shape.vocab, count)
    (directory / "tokens.json").write_text(json.dumps(ids.tolist()) + "\n")
    info: dict = {"note": note, "seed": seed}
    given = None
    if shape.engram_layers:
        info["classes"] = classes.tolist()
        given = (classes, int(classes.max()) + 1)
    for kind in ("plain", "release"):
        logits = oracle.Run(oracle.Model(str(directory)), given, release=kind == "release").forward(ids)
        np.save(directory / f"logits.{kind}.npy", logits.astype(np.float32))
        if shape.dspark_stages:
            run = oracle.Run(oracle.Model(str(directory)), given, release=kind == "release")
            _, drafts, _, confidence = run.draft(ids, np.append(ids[1:], 0), range(count - 1))
            np.save(directory / f"logits.dspark.{kind}.npy", drafts.astype(np.float32))
            np.save(directory / f"confidence.dspark.{kind}.npy", (1 / (1 + np.exp(-confidence))).astype(np.float32))
    exact = _exact(oracle)(oracle.Model(str(directory)), given).forward(ids)
    np.save(directory / "logits.exact.npy", exact.astype(np.float32))
    other = oracle.Run(oracle.Model(str(directory)), given, acc32="blocks").forward(ids).astype(np.float64)
    release = np.load(directory / "logits.release.npy").astype(np.float64)
    cosines = (other * release).sum(1) / np.linalg.norm(other, axis=1) / np.linalg.norm(release, axis=1)
    info["release_noise"] = {"median": float(np.median(cosines)), "p5": float(np.percentile(cosines, 5)), "min": float(cosines.min())}
    (directory / "golden.json").write_text(json.dumps(info, indent=1) + "\n")
    size = sum(f.stat().st_size for f in directory.iterdir())
    print(f"{name:10s} {size / 1e6:.2f} MB noise {info['release_noise']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("names", nargs="*", help="only these goldens")
    args = parser.parse_args()
    oracle = _oracle(args.oracle)
    for name in args.names or GOLDENS:
        make(oracle, name, args.out)


if __name__ == "__main__":
    main()
