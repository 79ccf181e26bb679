"""The arithmetic every op shares: precision, products, RMSNorm, RoPE, the two simulated quantisations."""

from dataclasses import dataclass, field

import numpy as np

from .checkpoint import Weight
from .formats import hadamard_matrix, quantise_fp4, quantise_fp8, round_bf16
from .options import Options

F32, F64 = np.float32, np.float64


@dataclass
class Numerics:
    options: Options
    norm_eps: float = 1e-6
    trace: dict[str, np.ndarray] | None = field(default=None)

    @property
    def dtype(self):
        return F32 if self.options.release else F64

    def record(self, name: str, value: np.ndarray) -> np.ndarray:
        if self.trace is not None:
            self.trace[name] = value
        return value

    def round(self, x: np.ndarray) -> np.ndarray:
        """The store of a tensor between ops."""
        return round_bf16(x) if self.options.bf16 else x.astype(self.dtype)

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """x W^T, wide enough that the order of summation does not matter."""
        if self.options.float32_products:
            return x.astype(F32) @ w.astype(F32).T
        return x.astype(F64) @ w.astype(F64).T

    def linear(self, x: np.ndarray, weight: Weight) -> np.ndarray:
        o = self.options
        quantised = weight.kind in ("fp8", "mxfp4") or (weight.kind == "nvfp4" and o.nvfp4_activation_fp8)
        if o.release and o.activation_fp8 and quantised:
            x = quantise_fp8(x, 128)
        return self.round(self.product(x, weight.values))

    def rms_norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        x = x.astype(self.dtype)
        normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.dtype(self.norm_eps))
        return self.round(normed * weight.astype(self.dtype))

    def head_norm(self, x: np.ndarray) -> np.ndarray:
        """The unweighted norm of each query head; the release rounds every intermediate."""
        if self.options.query_norm_bf16 and self.options.bf16:
            mean = round_bf16(round_bf16(x * x).astype(F64).mean(-1, keepdims=True))
            return round_bf16(x * round_bf16(1 / np.sqrt(round_bf16(mean + F32(self.norm_eps)))))
        mean = (x.astype(self.dtype) ** 2).mean(-1, keepdims=True)
        return self.round(x / np.sqrt(mean + self.dtype(self.norm_eps)))

    def cos_sin(self, positions: np.ndarray, frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[n, pairs] each. The angle is one float32 product; the functions see its exact value."""
        angle = positions.astype(F32)[:, None] * frequencies.astype(F32)[None]
        if self.options.sincos == "fast":  # range reduction with a float32 2 pi, as fast intrinsics do
            turn = F32(2 * np.pi)
            angle = (angle - np.rint(angle / turn) * turn).astype(F32)
        angle = angle.astype(F64)
        return np.cos(angle).astype(self.dtype), np.sin(angle).astype(self.dtype)

    def rope(self, x: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, inverse: bool = False,
             amplitude: float = 1.0) -> np.ndarray:
        """Rotates the last 2*len(frequencies) dims of x [n, ..., d], row i by positions[i]."""
        o = self.options
        cos, sin = self.cos_sin(positions, frequencies)
        if amplitude != 1.0:
            cos, sin = cos * self.dtype(amplitude), sin * self.dtype(amplitude)
        if inverse:
            sin = -sin
        dim = 2 * len(frequencies)
        split = x.shape[-1] - dim if o.rope_dims == "last" else 0
        rotary = x[..., split:split + dim].astype(self.dtype)
        shape = (len(positions),) + (1,) * (x.ndim - 2) + (dim // 2,)
        cos, sin = cos.reshape(shape), sin.reshape(shape)
        rotated = np.empty_like(rotary)
        if o.rope_pairs == "interleaved":
            first, second = np.s_[..., 0::2], np.s_[..., 1::2]
        else:
            first, second = np.s_[..., :dim // 2], np.s_[..., dim // 2:]
        a, b = rotary[first], rotary[second]
        rotated[first] = a * cos - b * sin
        rotated[second] = a * sin + b * cos
        before, after = x[..., :split].astype(self.dtype), x[..., split + dim:].astype(self.dtype)
        return np.concatenate([before, self.round(rotated), after], -1)

    def round_nope_fp8(self, row: np.ndarray, rope_dim: int) -> np.ndarray:
        """FP8 rounding of all but the last rope_dim elements of finished cache rows."""
        o = self.options
        nope = row.shape[-1] - rope_dim
        parts = [row[..., :nope], row[..., nope:]]
        parts[0] = self.round(self._fp8_groups(parts[0]))
        if o.kv_rounding == "all-after-rope":
            parts[1] = self.round(self._fp8_groups(parts[1]))
        return np.concatenate(parts, -1)

    def _fp8_groups(self, x: np.ndarray) -> np.ndarray:
        """Groups of kv_group; a shorter last group if it does not divide."""
        group, width = self.options.kv_group, x.shape[-1]
        if width % group == 0:
            return quantise_fp8(x, group)
        whole = width - width % group
        tail = quantise_fp8(x[..., whole:], width - whole)
        return np.concatenate([quantise_fp8(x[..., :whole], group), tail], -1) if whole else tail

    def window_row(self, row: np.ndarray, rope_dim: int) -> np.ndarray:
        return self.round_nope_fp8(row, rope_dim) if self.options.window_fp8 else row

    def round_all_fp8(self, row: np.ndarray) -> np.ndarray:
        return self.round(self._fp8_groups(row))

    def indexer_row(self, x: np.ndarray, hadamard: bool, fp4: bool) -> np.ndarray:
        """Hadamard rotation and FP4 rounding of indexer queries and entries."""
        if hadamard:
            size = x.shape[-1]
            x = self.round((x.astype(F64) @ hadamard_matrix(size)) * size**-0.5)
        return self.round(quantise_fp4(x, 32)) if fp4 else x
