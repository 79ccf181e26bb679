"""Checkpoints: single or sharded safetensors, any name dialect, any weight format, decoded to exact values."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .config import Config
from .formats import E4M3, E8M0, unpack_e2m1
from .names import canonical
from .options import Options

_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "I8": np.uint8,
           "U8": np.uint8, "I64": np.int64}

Tensor = tuple[str, np.ndarray]  # safetensors dtype name; the stored integers for BF16 and the 8-bit floats


@dataclass
class Weight:
    """Decoded values and the stored format: plain, fp8, mxfp4 or nvfp4."""

    values: np.ndarray
    kind: str


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """name -> (dtype name, array); BF16 and the 8-bit floats come as raw integers."""
    raw = path.read_bytes()
    header_size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + header_size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(raw[8 + header_size + begin:8 + header_size + end], _DTYPES[entry["dtype"]])
        tensors[name] = (entry["dtype"], array.reshape(entry["shape"]))
    return tensors


def _read_directory(directory: Path) -> dict[str, Tensor]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(directory / "model.safetensors")
    tensors = {}
    for shard in sorted(set(json.loads(index.read_text())["weight_map"].values())):
        tensors |= read_safetensors(directory / shard)
    return tensors


class Decoder:
    """Stored tensors of one module to values. `fp8_block` is the config's block of FP8 scales, rows by columns."""

    def __init__(self, options: Options, fp8_block: tuple[int, int] = (128, 128)):
        self.options, self.fp8_block = options, fp8_block

    @staticmethod
    def plain(dtype: str, array: np.ndarray) -> np.ndarray:
        if dtype == "BF16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        if dtype == "F16":
            return array.astype(np.float32)
        return array

    def decode(self, stem: str, parts: dict[str, Tensor]) -> Weight:
        dtype, array = next(parts[s] for s in ("", "weight", "weight_packed") if s in parts)
        if dtype in ("F32", "F16", "BF16", "I64"):
            return Weight(self.plain(dtype, array), "plain")
        if dtype == "F8_E4M3":
            scale_dtype, scale = next(parts[s] for s in ("scale", "weight_scale_inv", "weight_scale") if s in parts)
            rows, columns = self.fp8_block
            scale = np.repeat(np.repeat(self._scales(scale_dtype, scale), rows, 0)[:array.shape[0]], columns, 1)[:, :array.shape[1]]
            return Weight(E4M3[array] * scale, "fp8")
        codes = unpack_e2m1(array, self.options.nibbles == "high-first")
        if "weight_scale_2" in parts or "weight_global_scale" in parts:
            return Weight(codes * np.repeat(self._nvfp4_scales(parts), 16, 1), "nvfp4")
        if "scale" not in parts:
            raise ValueError(f"tensor {stem}: packed {dtype} without scales")
        return Weight(codes * self._mxfp4_scales(codes.shape, *parts["scale"]), "mxfp4")

    def _scales(self, dtype: str, array: np.ndarray) -> np.ndarray:
        if dtype != "F8_E8M0":
            return array.astype(np.float64)
        values = E8M0[array]
        if self.options.e8m0 == "numeric":  # the value converted to an integer, that integer taken for the exponent byte
            return E8M0[np.clip(values, 0, 254).astype(np.uint8)]
        return 1 / values if self.options.e8m0 == "inverse" else values

    def _mxfp4_scales(self, shape: tuple[int, int], dtype: str, array: np.ndarray) -> np.ndarray:
        scales = self._scales(dtype, array)
        if self.options.mxfp4_scales == "column-major":
            scales = scales.reshape(scales.shape[::-1]).T
        if self.options.mxfp4_scales == "square-blocks":  # one scale for 128 x 128 elements, as FP8 has it
            scales = np.repeat(np.repeat(scales[::128, ::4], 128, 0)[:shape[0]], 4, 1)[:, :scales.shape[1]]
        return np.repeat(scales, 32, 1)

    def _nvfp4_scales(self, parts: dict[str, Tensor]) -> np.ndarray:
        block = E4M3[parts["weight_scale"][1]].astype(np.float32)
        if "weight_scale_2" in parts:
            tensor = parts["weight_scale_2"][1].astype(np.float32)
        else:  # compressed-tensors stores the divisor
            tensor = np.float32(1) / parts["weight_global_scale"][1].astype(np.float32)
        tensor = tensor.reshape(())
        if self.options.global_scale == "dropped":
            tensor = np.float32(1)
        elif self.options.global_scale == "inverse":
            tensor = np.float32(1) / tensor
        return (block * tensor).astype(np.float64)


class Checkpoint:
    """`weights[name]` in the release's names, without the `.weight` suffix."""

    def __init__(self, directory: str | Path, options: Options):
        directory = Path(directory)
        self.config = Config.load(directory / "config.json")
        modules: dict[str, dict[str, Tensor]] = {}
        for name, tensor in _read_directory(directory).items():
            stem, suffix = canonical(name)
            modules.setdefault(stem, {})[suffix] = tensor
        decoder = Decoder(options, self.config.fp8_block)
        self.weights: dict[str, Weight] = {}
        for stem, parts in modules.items():
            if stem.endswith((".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")):
                self._split_fused_experts(stem, parts[""])
            else:
                self.weights[stem] = decoder.decode(stem, parts)

    def _split_fused_experts(self, stem: str, tensor: Tensor) -> None:
        """transformers' fused experts: gate_up_proj [E, 2I, D] holds w1's rows then w3's; down_proj [E, D, I] is w2."""
        scope = stem.partition(".mlp.")[0]
        values = Decoder.plain(*tensor)
        for expert, matrix in enumerate(values):
            base = f"{scope}.ffn.experts.{expert}"
            if stem.endswith("gate_up_proj"):
                half = matrix.shape[0] // 2
                self.weights[f"{base}.w1"] = Weight(matrix[:half], "plain")
                self.weights[f"{base}.w3"] = Weight(matrix[half:], "plain")
            else:
                self.weights[f"{base}.w2"] = Weight(matrix, "plain")

    def __getitem__(self, name: str) -> np.ndarray:
        return self.weights[name].values

    def __contains__(self, name: str) -> bool:
        return name in self.weights
