"""Golden logits of transformers' DeepseekV4ForCausalLM in float32, for the engine's `plain` numerics.

Runs where torch and transformers are installed. Writes OUT/<name>/: what save_pretrained writes, tokens.json,
logits.prefill.npy (one forward pass), logits.decode.npy (a prefill of `decode_from` tokens, then one token at a time: rows
decode_from.. ) and golden.json. With --check DIR it also feeds the dequantised weights of the release-format goldens to transformers
and compares their logits.plain.npy.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM, DynamicCache

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dialects  # noqa: E402
import margins  # noqa: E402
from oracle.compare import cosines, summary  # noqa: E402
from oracle.model import Model  # noqa: E402
from oracle.options import Options  # noqa: E402
from random_model import Shape, transformers_config, weights  # noqa: E402


@dataclass
class Golden:
    name: str
    shape: Shape
    seed: int
    num_tokens: int
    decode_from: int
    note: str


_TINY = dict(hidden=48, q_lora=32, o_lora=16, inter=32, vocab=128, index_heads=8, calm=False)
GOLDENS = [
    Golden("tf_wide", Shape([0, 4, 128, 4], num_hash_layers=2, heads=4, head_dim=32, rope_dim=16, window=128, index_dim=32, index_topk=96,
                            experts=6, swiglu_limit=10.0, **_TINY), 1, 300, 37,
           "SWA, CSA and HCA layers, two hash layers, top-k wider than the visible set, the release's window"),
    Golden("tf_narrow", Shape([4, 128, 0, 4], num_hash_layers=1, heads=2, head_dim=64, rope_dim=32, window=24, index_dim=32, index_topk=8,
                              experts=8, experts_per_token=3, route_scale=2.5, swiglu_limit=0.7, hc_iters=3, hc_eps=1e-2, **_TINY), 2, 300, 130,
           "top-k much narrower than the visible set, window below the ratio 128, acting clamp, few Sinkhorn steps with a large eps"),
]
CHUNKS = (1, 7, 37, 128)


def build(config: dict, values: dict[str, np.ndarray]) -> DeepseekV4ForCausalLM:
    """A float32 model holding `values`, given by the release's names; every parameter must be set."""
    config = {k: v for k, v in config.items() if k not in ("dtype", "quantization_config", "expert_dtype")}
    config = DeepseekV4Config(**config)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = DeepseekV4ForCausalLM(config).to(torch.float32).eval()
    slots = dict(model.named_parameters()) | {k: v for k, v in model.named_buffers() if "inv_freq" not in k}
    unset = set(slots)

    def put(name: str, value: np.ndarray) -> None:
        with torch.no_grad():
            slots[name].copy_(torch.from_numpy(np.ascontiguousarray(value)).reshape(slots[name].shape))
        unset.discard(name)

    def stacked(layer: int, names: tuple[str, ...]) -> np.ndarray:
        return np.stack([np.concatenate([values[f"layers.{layer}.ffn.experts.{e}.{n}"] for n in names])
                         for e in range(config.n_routed_experts)])

    for layer in range(config.num_hidden_layers):
        put(f"model.layers.{layer}.mlp.experts.gate_up_proj", stacked(layer, ("w1", "w3")))
        put(f"model.layers.{layer}.mlp.experts.down_proj", stacked(layer, ("w2",)))
    for name, value in values.items():
        if ".ffn.experts." in name or name.startswith("mtp."):
            continue
        base = dialects.transformers(name)
        candidates = (base, f"{base}.weight", base.replace(".weights_proj", ".scorer.weights_proj") + ".weight")
        put(next(c for c in candidates if c in slots), value)
    if unset:
        raise RuntimeError(f"parameters without a value: {sorted(unset)}")
    return model


@torch.no_grad()
def run(model: DeepseekV4ForCausalLM, ids: np.ndarray, pieces: list[int]) -> np.ndarray:
    """float32 logits of all positions, the tokens fed in pieces of these lengths through one cache."""
    tokens, out, at = torch.from_numpy(ids)[None], [], 0
    cache = DynamicCache(config=model.config)
    for length in pieces:
        out.append(model(tokens[:, at:at + length], past_key_values=cache, use_cache=True).logits[0].float().numpy())
        at += length
    return np.concatenate(out)


def pieces_of(total: int, chunk: int) -> list[int]:
    return [min(chunk, total - at) for at in range(0, total, chunk)]


def make(golden: Golden, out: Path) -> None:
    directory = out / golden.name
    for seed in range(golden.seed * 100, golden.seed * 100 + 30):
        model = build(transformers_config(golden.shape), weights(golden.shape, seed))
        model.save_pretrained(directory)
        ids = np.random.default_rng(seed).integers(0, golden.shape.vocab, golden.num_tokens)
        oracle = Model(directory, Options.make(plain=True), trace=True)
        ours = oracle.forward(ids)
        margin = margins.smallest(oracle)
        if margin > 2e-5:
            break
    else:
        raise RuntimeError(f"golden {golden.name}: no seed keeps clear of ties")
    (directory / "generation_config.json").unlink(missing_ok=True)
    n = golden.num_tokens
    prefill = run(model, ids, [n])
    decode = run(model, ids, [golden.decode_from] + [1] * (n - golden.decode_from))
    info = {
        "note": golden.note, "seed": seed, "calm": False, "smallest_margin": margin, "decode_from": golden.decode_from,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__},
        "oracle": summary(cosines(prefill, ours)) | {"max_abs": float(np.abs(prefill - ours).max())},
        "decode_max_abs": float(np.abs(prefill - decode).max()),
        "chunk_max_abs": {c: float(np.abs(prefill - run(model, ids, pieces_of(n, c))).max()) for c in CHUNKS},
    }
    np.save(directory / "logits.prefill.npy", prefill)
    np.save(directory / "logits.decode.npy", decode[golden.decode_from:])
    (directory / "tokens.json").write_text(json.dumps(ids.tolist()) + "\n")
    (directory / "golden.json").write_text(json.dumps(info, indent=1) + "\n")
    print(golden.name, json.dumps(info), sorted(p.name for p in directory.iterdir()), flush=True)


def check(directory: Path) -> None:
    """The release-format goldens' plain logits against transformers on the same dequantised weights."""
    for path in sorted(directory.iterdir()):
        if not (path / "logits.plain.npy").exists():
            continue
        from release_models import GOLDENS as RELEASE
        shape = next(g.shape for g in RELEASE if g.name == path.name)
        ckpt = Model(path, Options.make(plain=True)).ckpt
        model = build(transformers_config(shape), {k: w.values for k, w in ckpt.weights.items()})
        ids = np.array(json.loads((path / "tokens.json").read_text()))
        got, want = run(model, ids, [len(ids)]), np.load(path / "logits.plain.npy")
        print("check", path.name, summary(cosines(got, want)), "max_abs", float(np.abs(got - want).max()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--check", type=Path, help="directory of release-format goldens")
    args = parser.parse_args()
    for golden in GOLDENS:
        make(golden, args.out)
    if args.check:
        check(args.check)


if __name__ == "__main__":
    main()
