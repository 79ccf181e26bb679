"""The model of a checkpoint as one GGUF file for llama.cpp's architecture `deepseek4`.

Formats are those that llama.cpp's own converter chooses for the release: FP8 becomes Q8_0, FP4 experts keep their bits,
BF16 matrices stay BF16, vectors become F32. There is no tokenizer in the file: both engines are given token ids.
"""

from __future__ import annotations

import collections
import concurrent.futures
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

import blocks
from checkpoint import Checkpoint, Tensor

ARCHITECTURE = "deepseek4"
SQRT_SOFTPLUS = 4  # llama.cpp's number of the router's scoring function.

MODEL_NAMES = {
    "embed.weight": "token_embd.weight",
    "head.weight": "output.weight",
    "norm.weight": "output_norm.weight",
    "hc_head_fn": "output_hc_fn.weight",
    "hc_head_base": "output_hc_base.weight",
    "hc_head_scale": "output_hc_scale.weight",
}
LAYER_NAMES = {
    "attn_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "hc_attn_fn": "hc_attn_fn.weight",
    "hc_attn_base": "hc_attn_base.weight",
    "hc_attn_scale": "hc_attn_scale.weight",
    "hc_ffn_fn": "hc_ffn_fn.weight",
    "hc_ffn_base": "hc_ffn_base.weight",
    "hc_ffn_scale": "hc_ffn_scale.weight",
    "attn.attn_sink": "attn_sinks.weight",
    "attn.wq_a.weight": "attn_q_a.weight",
    "attn.q_norm.weight": "attn_q_a_norm.weight",
    "attn.wq_b.weight": "attn_q_b.weight",
    "attn.wkv.weight": "attn_kv.weight",
    "attn.kv_norm.weight": "attn_kv_a_norm.weight",
    "attn.wo_a.weight": "attn_output_a.weight",
    "attn.wo_b.weight": "attn_output_b.weight",
    "attn.compressor.wkv.weight": "attn_compressor_kv.weight",
    "attn.compressor.wgate.weight": "attn_compressor_gate.weight",
    "attn.compressor.ape": "attn_compressor_ape.weight",
    "attn.compressor.norm.weight": "attn_compressor_norm.weight",
    "attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
    "attn.indexer.weights_proj.weight": "indexer.proj.weight",
    "attn.indexer.compressor.wkv.weight": "indexer_compressor_kv.weight",
    "attn.indexer.compressor.wgate.weight": "indexer_compressor_gate.weight",
    "attn.indexer.compressor.ape": "indexer_compressor_ape.weight",
    "attn.indexer.compressor.norm.weight": "indexer_compressor_norm.weight",
    "ffn.gate.weight": "ffn_gate_inp.weight",
    "ffn.gate.bias": "exp_probs_b.bias",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid.weight",
    "ffn.shared_experts.w1.weight": "ffn_gate_shexp.weight",
    "ffn.shared_experts.w2.weight": "ffn_down_shexp.weight",
    "ffn.shared_experts.w3.weight": "ffn_up_shexp.weight",
}
EXPERT_NAMES = {"w1": "ffn_gate_exps.weight", "w2": "ffn_down_exps.weight", "w3": "ffn_up_exps.weight"}
BLOCK_BYTES = {  # Elements and bytes of a block.
    Type.F32: (1, 4), Type.BF16: (1, 2), Type.I32: (1, 4), Type.Q8_0: (blocks.Q8_0_BLOCK, blocks.Q8_0_BYTES),
    Type.MXFP4: (blocks.MXFP4_BLOCK, blocks.MXFP4_BYTES), Type.NVFP4: (blocks.NVFP4_BLOCK, blocks.NVFP4_BYTES),
}


@dataclass(frozen=True)
class Output:
    """One tensor of the GGUF file. Its bytes are those of `sources` one after another, each converted on its own."""

    name: str
    type: Type
    shape: tuple[int, ...]  # Outermost dimension first, in elements.
    sources: tuple[str, ...]

    def num_bytes(self) -> int:
        elements, size = BLOCK_BYTES[self.type]
        return int(np.prod(self.shape)) // elements * size


def _plain_output(tensor: Tensor, name: str) -> Output:
    kinds = {"F32": Type.F32, "F8_E4M3": Type.Q8_0, "I64": Type.I32, "BF16": Type.BF16 if len(tensor.shape) > 1 else Type.F32}
    if tensor.dtype not in kinds:
        raise ValueError(f"tensor {tensor.name}: {tensor.dtype} is not handled outside of the experts")
    return Output(name, kinds[tensor.dtype], tensor.shape, (tensor.name,))


def _expert_output(checkpoint: Checkpoint, layer: int, part: str) -> Output:
    count = checkpoint.config["n_routed_experts"]
    sources = tuple(f"layers.{layer}.ffn.experts.{e}.{part}.weight" for e in range(count))
    first = checkpoint[sources[0]]
    kinds = {"I8": Type.MXFP4, "U8": Type.NVFP4, "F8_E4M3": Type.Q8_0, "BF16": Type.BF16}
    columns = first.shape[1] * (2 if first.dtype in ("I8", "U8") else 1)
    return Output(f"blk.{layer}.{EXPERT_NAMES[part]}", kinds[first.dtype], (count, first.shape[0], columns), sources)


def outputs(checkpoint: Checkpoint) -> Iterator[Output]:
    """Every tensor of the GGUF file. A tensor of the checkpoint that would be left behind is an error."""
    left = set(checkpoint.tensors)

    def taken(output: Output) -> Output:
        for source in output.sources:
            left.difference_update(source.removesuffix("weight") + end
                                   for end in ("weight", "scale", "weight_scale", "weight_scale_2", "input_scale"))
            left.discard(source)
        return output

    for source, name in MODEL_NAMES.items():
        yield taken(_plain_output(checkpoint[source], name))
    for layer in range(checkpoint.config["num_hidden_layers"]):
        for source, name in LAYER_NAMES.items():
            full = f"layers.{layer}.{source}"
            if full in checkpoint.tensors:
                yield taken(_plain_output(checkpoint[full], f"blk.{layer}.{name}"))
        for part in EXPERT_NAMES:
            yield taken(_expert_output(checkpoint, layer, part))
    if left:
        raise ValueError(f"{checkpoint.directory}: {len(left)} tensors have no place in the GGUF file, {min(left)} for one")


def _converted(checkpoint: Checkpoint, source: str, kind: Type) -> bytes:
    tensor = checkpoint[source]
    stem = source.removesuffix(".weight")
    if kind == Type.MXFP4:
        return blocks.mxfp4(tensor.data(), checkpoint[stem + ".scale"].data())
    if kind == Type.NVFP4:
        second = checkpoint[stem + ".weight_scale_2"].view.cast("f")[0]
        if second != 1:
            raise ValueError(f"tensor {stem}: weight_scale_2 is {second}; llama.cpp's deepseek4 graph leaves it out, so that only "
                             "NVFP4 models with second-level scales of 1 mean the same there")
        return blocks.nvfp4(tensor.data(), checkpoint[stem + ".weight_scale"].data())
    if kind == Type.Q8_0:
        return blocks.q8_0(tensor.data(), checkpoint[stem + ".scale"].data(), tensor.shape[-1])
    if kind == Type.I32:
        return blocks.i32_of_i64(tensor.data())
    if kind == Type.F32 and tensor.dtype == "BF16":
        return blocks.f32_of_bf16(tensor.data())
    return tensor.data()


def _add_metadata(writer: gguf.GGUFWriter, config: dict) -> None:
    rope = config["rope_scaling"]
    integers = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "embedding_length_out": config["hidden_size"] * config["hc_mult"],
        "vocab_size": config["vocab_size"],
        "feed_forward_length": config["moe_intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": 1,
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.sliding_window": config["sliding_window"],
        "attention.output_group_count": config["o_groups"],
        "attention.output_lora_rank": config["o_lora_rank"],
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
        "rope.dimension_count": config["qk_rope_head_dim"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_gating_func": SQRT_SOFTPLUS,
        "hyper_connection.count": config["hc_mult"],
        "hyper_connection.sinkhorn_iterations": config["hc_sinkhorn_iters"],
        "hash_layer_count": config["num_hash_layers"],
    }
    floats = {
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.compress_rope_freq_base": config["compress_rope_theta"],
        "rope.freq_base": config["rope_theta"],
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.yarn_beta_fast": rope["beta_fast"],
        "rope.scaling.yarn_beta_slow": rope["beta_slow"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "swiglu_clamp_exp": config["swiglu_limit"],
        "swiglu_clamp_shexp": config["swiglu_limit"],
        "hyper_connection.epsilon": config["hc_eps"],
    }
    for key, value in integers.items():
        writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
    for key, value in floats.items():
        writer.add_float32(f"{ARCHITECTURE}.{key}", float(value))
    writer.add_bool(f"{ARCHITECTURE}.expert_weights_norm", config["norm_topk_prob"])
    writer.add_string(f"{ARCHITECTURE}.rope.scaling.type", rope["type"])
    ratios = config["compress_ratios"][:config["num_hidden_layers"]]
    writer.add_array(f"{ARCHITECTURE}.attention.compress_ratios", ratios)
    writer.add_string("tokenizer.ggml.model", "none")


_checkpoint: Checkpoint  # Of a worker.


def _open(directory: Path) -> None:
    global _checkpoint
    _checkpoint = Checkpoint(directory)


def _convert(source: str, kind: Type) -> bytes:
    return _converted(_checkpoint, source, kind)


def _all_converted(directory: Path, plan: list[Output]) -> Iterator[bytes]:
    """Blocks of the sources of `plan`, in its order: made by a process a core, few of them ahead of what is taken."""
    cores = len(os.sched_getaffinity(0))
    with concurrent.futures.ProcessPoolExecutor(cores, initializer=_open, initargs=(directory,)) as pool:
        ahead: collections.deque[concurrent.futures.Future[bytes]] = collections.deque()
        for output in plan:
            for source in output.sources:
                ahead.append(pool.submit(_convert, source, output.type))
                if len(ahead) > 2 * cores:
                    yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def write(directory: Path, path: Path) -> None:
    """Writes the checkpoint's model to `path`. One tensor of the result is in memory at a time, and what comes next."""
    checkpoint = Checkpoint(directory)
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, ARCHITECTURE)
    _add_metadata(writer, checkpoint.config)
    plan = list(outputs(checkpoint))
    for output in plan:
        writer.add_tensor_info(output.name, output.shape, np.dtype(np.float32), output.num_bytes(), output.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    converted = _all_converted(directory, plan)
    for output in plan:
        data = b"".join(next(converted) for _ in output.sources)
        if len(data) != output.num_bytes():
            raise ValueError(f"tensor {output.name}: {len(data)} bytes, wanted {output.num_bytes()}")
        writer.write_tensor_data(np.frombuffer(data, np.uint8))
    writer.close()
    partial.rename(path)
