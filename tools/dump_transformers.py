"""Dumps every tensor of a transformers run of DeepSeek-V4 in the format of docs/dump-format.md, for `dsv4 diagnose compare`.

    python tools/dump_transformers.py MODEL DUMP --tokens ids.json
    dsv4 diagnose compare -m MODEL --numerics plain --with DUMP

Needs torch, transformers (5.17.0 was used) and safetensors, on any machine that can hold the model; copy the directory afterwards.
The same idea hooks any engine: call `Recorder.save` with a name of the format and a tensor whose first dimension is the position.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

# Submodule of a decoder layer -> names of its outputs, in order; None: not dumped.
LAYER_OUTPUTS: dict[str, tuple[str | None, ...]] = {
    "attn_hc": ("attn.hc_post", "attn.hc_comb", "attn.hc_pre"),
    "input_layernorm": ("attn.norm",),
    "self_attn.q_a_proj": ("attn.q_a",),
    "self_attn.q_a_norm": ("attn.q_lora",),
    "self_attn.q_b_proj": ("attn.q_b",),
    "self_attn.kv_proj": ("attn.kv_a",),
    "self_attn.kv_norm": ("attn.kv_norm",),
    "self_attn.compressor.kv_proj": ("attn.compressor.values",),
    "self_attn.compressor.gate_proj": ("attn.compressor.scores",),
    "self_attn.compressor.kv_norm": ("attn.compressor.norm",),
    "self_attn.compressor.indexer.kv_proj": ("attn.indexer.compressor.values",),
    "self_attn.compressor.indexer.gate_proj": ("attn.indexer.compressor.scores",),
    "self_attn.compressor.indexer.kv_norm": ("attn.indexer.compressor.norm",),
    "self_attn.compressor.indexer.q_b_proj": ("attn.indexer.q_b",),
    "self_attn.o_a_proj": ("attn.o_lora",),
    "self_attn": ("attn.out", None),
    "ffn_hc": ("ffn.hc_post", "ffn.hc_comb", "ffn.hc_pre"),
    "post_attention_layernorm": ("ffn.norm",),
    "mlp.gate": ("ffn.router.logits", "ffn.router.weights", "ffn.router.indices"),
    "mlp.experts": ("ffn.routed",),
    "mlp.shared_experts": ("ffn.shared",),
    "mlp": ("ffn.out",),
}
# Submodule of a decoder layer -> name of its first input.
LAYER_INPUTS: dict[str, str] = {
    "self_attn.compressor.kv_norm": "attn.compressor.pooled",
    "self_attn.compressor.indexer.kv_norm": "attn.indexer.compressor.pooled",
    "self_attn.o_a_proj": "attn.o_unrotated",
    "ffn_hc": "attn.streams",
    "mlp.shared_experts.down_proj": "ffn.shared.hidden",
}
# Tensors outside the layers, by the module's full name.
OUTER_OUTPUTS = {"model.hc_head": "head.hc", "model.norm": "head.norm", "lm_head": "logits"}


class Recorder:
    """Keeps tensors by the names of the format."""

    def __init__(self, model: torch.nn.Module, num_tokens: int) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.num_tokens = num_tokens
        self.config = model.config

    def save(self, name: str, tensor: torch.Tensor) -> None:
        """Without the batch dimension; entries of a compressor are rows like tokens."""
        tensor = tensor.detach().cpu()
        leaf = name.split(".", 2)[-1] if name.startswith("layers.") else name
        if leaf == "attn.o_unrotated":
            tensor = tensor.reshape(self.num_tokens, self.config.num_attention_heads, self.config.head_dim)
        elif tensor.dim() > 1 and tensor.shape[0] == 1 and not (self.num_tokens == 1 and leaf.startswith("ffn.router.")):
            tensor = tensor[0]
        if name in self.tensors:
            raise ValueError(f"{name}: computed twice; the run must be one forward pass")
        dtype = torch.int32 if not tensor.is_floating_point() else tensor.dtype
        self.tensors[name] = tensor.to(dtype).contiguous().clone()

    def outputs(self, names: tuple[str | None, ...], prefix: str) -> Callable:
        """A forward hook that saves a module's outputs under `names`."""

        def hook(_module: torch.nn.Module, _inputs: tuple, output: torch.Tensor | tuple) -> None:
            values = output if isinstance(output, tuple) else (output,)
            if len(values) != len(names):
                raise ValueError(f"{prefix}{names[0]}: {len(values)} outputs, wanted {len(names)}: another transformers?")
            for name, value in zip(names, values, strict=True):
                if name is not None:
                    self.save(prefix + name, value)

        return hook

    def first_input(self, name: str) -> Callable:
        """A forward pre-hook that saves a module's first input under `name`."""

        def hook(_module: torch.nn.Module, inputs: tuple) -> None:
            self.save(name, inputs[0])

        return hook


def attach(model: torch.nn.Module, recorder: Recorder) -> None:
    """Hooks every module of the tables; one that a layer does not have (no compressor) is left out."""
    for index, layer in enumerate(model.model.layers):
        prefix = f"layers.{index}."
        modules = dict(layer.named_modules())
        for path, names in LAYER_OUTPUTS.items():
            if path in modules:
                modules[path].register_forward_hook(recorder.outputs(names, prefix))
        for path, name in LAYER_INPUTS.items():
            if path in modules:
                modules[path].register_forward_pre_hook(recorder.first_input(prefix + name))
        layer.register_forward_hook(recorder.outputs(("ffn.streams",), prefix))
    model.model.layers[0].register_forward_pre_hook(recorder.first_input("embed"))
    model.model.hc_head.register_forward_pre_hook(recorder.first_input("head.streams"))
    modules = dict(model.named_modules())
    for path, name in OUTER_OUTPUTS.items():
        modules[path].register_forward_hook(recorder.outputs((name,), ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="checkpoint directory that transformers can load")
    parser.add_argument("dump", type=Path, help="directory to write; must not exist")
    parser.add_argument("--tokens", type=Path, required=True, help="JSON list of token ids")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of weights and activations")
    args = parser.parse_args()

    tokens = torch.tensor([json.loads(args.tokens.read_text())], dtype=torch.long)
    args.dump.mkdir(parents=True)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype), attn_implementation="eager").eval()
    recorder = Recorder(model, tokens.shape[1])
    recorder.save("pass.token_ids", tokens)
    attach(model, recorder)
    with torch.no_grad():
        model(input_ids=tokens)
    save_file(recorder.tensors, args.dump / "transformers.safetensors")
    print(f"{args.dump}: {len(recorder.tensors)} tensors of {tokens.shape[1]} tokens")


if __name__ == "__main__":
    main()
