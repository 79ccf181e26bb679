"""python3 -m oracle MODEL TOKENS OUT.npy [--plain] [--option NAME=VALUE ...] [--max-layers N] [--mtp [--drafts K] | --dspark] [--trace TRACE.npz]"""

import argparse
import json
from dataclasses import fields
from pathlib import Path

import numpy as np

from .dspark import Dspark
from .model import Model
from .options import Options


def read_tokens(path: Path) -> np.ndarray:
    """A JSON list or whitespace-separated ids."""
    text = path.read_text().strip()
    return np.array(json.loads(text) if text.startswith("[") else text.split(), dtype=np.int64)


def main() -> None:
    names = "\n".join(f"  {f.name} (default {f.default}): {f.metadata['doc']}" for f in fields(Options))
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__, epilog=f"options:\n{names}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("out", type=Path, help="float32 logits [num_tokens, vocab]")
    parser.add_argument("--plain", action="store_true", help="dequantised weights, float64, no simulated rounding")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--max-layers", type=int)
    parser.add_argument("--mtp", action="store_true", help="logits of the draft block instead")
    parser.add_argument("--dspark", action="store_true", help="logits [num_tokens - 1, block, vocab] of the DSpark drafter instead")
    parser.add_argument("--confidence", type=Path, help="with --dspark: its chances of acceptance, .npy")
    parser.add_argument("--drafts", type=int, help="with --mtp: [num_tokens - 1, K, vocab], each draft from the one before")
    parser.add_argument("--trace", type=Path, help="every intermediate, as .npz")
    args = parser.parse_args()
    if args.mtp and args.dspark or args.confidence and not args.dspark:
        parser.error("wanted --mtp or --dspark, and --confidence with --dspark alone")
    options = Options.make(args.plain, **dict(Options.parse(a) for a in args.option))
    model = Model(args.model, options, trace=args.trace is not None)
    ids = read_tokens(args.tokens)
    if args.dspark:
        logits, chances = Dspark(model)(ids)
        if args.confidence:
            np.save(args.confidence, chances)
    else:
        logits = model.drafts(ids, args.drafts) if args.drafts else model.mtp(ids) if args.mtp else model.forward(ids, args.max_layers)
    np.save(args.out, logits)
    if args.trace:
        np.savez(args.trace, **model.trace)
    print(f"{args.out}: {logits.shape[0]} positions, vocabulary {logits.shape[-1]}")


if __name__ == "__main__":
    main()
