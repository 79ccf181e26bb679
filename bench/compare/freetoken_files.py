"""A checkpoint as FreeToken reads it: beside the release's files it wants an index of tensors and inference/config.json."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

# The name in inference/config.json, and that in config.json.
NAMES = {
    "vocab_size": "vocab_size", "dim": "hidden_size", "moe_inter_dim": "moe_intermediate_size", "n_layers": "num_hidden_layers",
    "n_hash_layers": "num_hash_layers", "n_heads": "num_attention_heads", "n_routed_experts": "n_routed_experts",
    "n_shared_experts": "n_shared_experts", "n_activated_experts": "num_experts_per_tok", "score_func": "scoring_func",
    "route_scale": "routed_scaling_factor", "swiglu_limit": "swiglu_limit", "q_lora_rank": "q_lora_rank", "head_dim": "head_dim",
    "rope_head_dim": "qk_rope_head_dim", "norm_eps": "rms_norm_eps", "o_groups": "o_groups", "o_lora_rank": "o_lora_rank",
    "window_size": "sliding_window", "compress_ratios": "compress_ratios", "compress_rope_theta": "compress_rope_theta",
    "rope_theta": "rope_theta", "index_n_heads": "index_n_heads", "index_head_dim": "index_head_dim", "index_topk": "index_topk",
    "hc_mult": "hc_mult", "hc_sinkhorn_iters": "hc_sinkhorn_iters", "hc_eps": "hc_eps",
}
ROPE_NAMES = {"original_seq_len": "original_max_position_embeddings", "rope_factor": "factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow"}
# Config of the release's format: FP8 with MXFP4 experts, no draft block.
FORMAT = {"n_mtp_layers": 0, "dtype": "fp8", "scale_fmt": "ue8m0", "expert_dtype": "fp4"}


def inference_config(config: dict) -> dict:
    """`config`: of config.json. A key that is not there is an error, not a default."""
    rope = config.get("rope_scaling") or {}
    missing = [key for key in NAMES.values() if key not in config] + [f"rope_scaling.{key}" for key in ROPE_NAMES.values() if key not in rope]
    if missing:
        raise ValueError(f"config.json: no {', '.join(missing)}, which FreeToken wants")
    return {name: config[key] for name, key in NAMES.items()} | {name: rope[key] for name, key in ROPE_NAMES.items()} | FORMAT


def tensor_names(path: Path) -> list[str]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return [name for name in json.loads(file.read(length)) if name != "__metadata__"]


def provide(checkpoint: Path, folder: Path) -> Path:
    """`folder`, made anew: links to the files of the checkpoint, and what FreeToken wants beside them. The checkpoint stays as it is."""
    files = sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{checkpoint}: no .safetensors file")
    content = {
        "model.safetensors.index.json": {"metadata": {}, "weight_map": {name: path.name for path in files for name in tensor_names(path)}},
        "inference/config.json": inference_config(json.loads((checkpoint / "config.json").read_text())),
    }
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "inference").mkdir(parents=True)
    for path in checkpoint.iterdir():
        if path.is_file() and path.name not in content:
            (folder / path.name).symlink_to(path.resolve())
    for name, value in content.items():
        (folder / name).write_text(json.dumps(value, indent=1) + "\n")
    return folder
