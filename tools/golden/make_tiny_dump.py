"""Results of transformers for models/tiny in float32, reduced to the outputs of layers: the dump that tests/diag compares with.

    python tools/golden/make_tiny_dump.py tests/diag/transformers_dump/tiny

Runs where torch and transformers are installed. transformers reads no NVFP4 experts, so its model gets the weights that the oracle
dequantises, as in make_transformers.py --check. 132 tokens: a window, a block of 128, and a few that see it.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from dump_transformers import Recorder, attach  # noqa: E402
from make_transformers import build  # noqa: E402
from oracle.model import Model  # noqa: E402
from oracle.options import Options  # noqa: E402
from random_model import transformers_form  # noqa: E402

NUM_TOKENS = 132
KEPT = ("pass.token_ids", "ffn.out", "attn.compressor.pooled", "attn.indexer.compressor.pooled", "head.norm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path, help="directory to write; must not exist")
    dump = parser.parse_args().dump

    directory = ROOT / "models/tiny"
    config = transformers_form(json.loads((directory / "config.json").read_text()))
    checkpoint = Model(directory, Options.make(plain=True)).ckpt
    model = build(config, {name: weight.values for name, weight in checkpoint.weights.items()})
    tokens = torch.tensor([[(i * i * 37 + i * 11) % config["vocab_size"] for i in range(NUM_TOKENS)]])
    recorder = Recorder(model, NUM_TOKENS)
    recorder.save("pass.token_ids", tokens)
    attach(model, recorder)
    with torch.no_grad():
        model(input_ids=tokens)
    kept = {name: tensor for name, tensor in recorder.tensors.items() if name.split(".", 2)[-1] in KEPT or name in KEPT}
    dump.mkdir(parents=True)
    save_file(kept, dump / "tiny.safetensors")
    print(f"{dump}: {len(kept)} tensors, transformers {transformers.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
