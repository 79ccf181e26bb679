"""Writes the golden models in the release's formats with the oracle's logits: tests/golden/models/<name>/.

tokens.json and logits.{release,plain}.npy hold one long prompt; short.json and short.{release,plain}.npy the short prompts of the
`ordinary` model, rows of all prompts one after the other. logits.mtp.plain.npy holds the draft block's logits where there is one,
drafts.mtp.plain.npy those of three drafts in a row, {logits,confidence}.dspark.{release,plain}.npy those of a DSpark drafter.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import margins  # noqa: E402
from oracle.compare import cosines, summary  # noqa: E402
from oracle.dspark import Dspark  # noqa: E402
from oracle.model import Model  # noqa: E402
from oracle.options import Options  # noqa: E402
from release_models import GOLDENS, Golden, write  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
# Distance to the nearest tie that float32 arithmetic cannot bridge on these sizes.
MIN_MARGIN = 2e-5


def _clear_seed(golden: Golden, directory: Path) -> tuple[int, np.ndarray, Model]:
    """The first seed whose plain forward pass keeps clear of every tie."""
    for seed in range(golden.seed * 1000, golden.seed * 1000 + 100):
        write(golden, seed, directory)
        ids = np.random.default_rng(seed).integers(0, golden.shape.vocab, max(golden.num_tokens, 8))
        model = Model(directory, Options.make(plain=True), trace=True)
        logits = model.forward(ids)
        clear = margins.smallest(model) > MIN_MARGIN
        if clear and golden.shape.dspark_stages:
            clear = min(margins.smallest(model), margins.drafts(Dspark(model)(ids)[0])) > MIN_MARGIN
        if clear:
            return seed, ids, logits
    raise RuntimeError(f"golden {golden.name}: no seed out of 100 keeps {MIN_MARGIN} away from ties")


def make(golden: Golden, out: Path) -> None:
    directory = out / golden.name
    seed, ids, plain = _clear_seed(golden, directory)
    info = {"note": golden.note, "seed": seed, "calm": golden.shape.calm}
    if golden.num_tokens:
        release = Model(directory).forward(ids)
        other = Model(directory, Options.make(float32_products=True)).forward(ids)
        info["release_noise"] = summary(cosines(release, other))
        (directory / "tokens.json").write_text(json.dumps(ids.tolist()) + "\n")
        np.save(directory / "logits.release.npy", release)
        np.save(directory / "logits.plain.npy", plain)
        if golden.shape.mtp:
            np.save(directory / "logits.mtp.plain.npy", Model(directory, Options.make(plain=True)).mtp(ids))
            np.save(directory / "drafts.mtp.plain.npy", Model(directory, Options.make(plain=True)).drafts(ids, 3))
        if golden.shape.dspark_stages:
            for kind in ("release", "plain"):
                drafts, confidence = Dspark(Model(directory, Options.make(plain=kind == "plain")))(ids)
                np.save(directory / f"logits.dspark.{kind}.npy", drafts)
                np.save(directory / f"confidence.dspark.{kind}.npy", confidence)
    else:
        rng = np.random.default_rng(seed)
        prompts = [rng.integers(0, golden.shape.vocab, 1 + i % 8).tolist() for i in range(32)]
        (directory / "short.json").write_text(json.dumps(prompts) + "\n")
        for kind, options in (("release", Options.make()), ("plain", Options.make(plain=True))):
            model = Model(directory, options)
            np.save(directory / f"short.{kind}.npy", np.concatenate([model.forward(np.array(p)) for p in prompts]))
    (directory / "golden.json").write_text(json.dumps(info, indent=1) + "\n")
    size = sum(f.stat().st_size for f in directory.iterdir())
    print(f"{golden.name:14s} seed {seed} {size / 1e6:.2f} MB {info.get('release_noise', '')}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "tests/golden/models")
    parser.add_argument("names", nargs="*", help="only these goldens")
    args = parser.parse_args()
    unknown = set(args.names) - {g.name for g in GOLDENS}
    if unknown:
        parser.error(f"unknown goldens {sorted(unknown)}")
    for golden in GOLDENS:
        if not args.names or golden.name in args.names:
            make(golden, args.out)


if __name__ == "__main__":
    main()
