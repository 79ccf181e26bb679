"""The release's number formats in PyTorch: quantisers that return the values a stored tensor decodes to.

All arithmetic is fp32; rounding is to nearest, ties to even. `ste` makes a quantiser pass gradients through unchanged.
Sources: architecture specification 2.2, 2.3, 2.8; quantization specification 1.4 (NVFP4) and 3.1 (FP8 blocks).
"""

from __future__ import annotations

import torch
from torch import Tensor

_RECIPROCAL_448 = float(torch.tensor([0x3B124925], dtype=torch.int32).view(torch.float32))
_RECIPROCAL_6 = float(torch.tensor([0x3E2AAAAB], dtype=torch.int32).view(torch.float32))


def ste(original: Tensor, quantised: Tensor) -> Tensor:
    """Straight-through estimator: the value of `quantised`, the gradient of `original`."""
    return original + (quantised - original).detach()


def power_of_two_ceiling(t: Tensor) -> Tensor:
    """Smallest power of two >= t for positive normal fp32 t."""
    bits = t.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def e4m3(x: Tensor) -> Tensor:
    """Rounds fp32 values, already within +-448, to the E4M3 grid (returned as fp32)."""
    return x.to(torch.float8_e4m3fn).float()


def e2m1(x: Tensor) -> Tensor:
    """Rounds fp32 values to the E2M1 grid, saturating at +-6 (returned as fp32)."""
    x = x.clamp(-6.0, 6.0)
    magnitude = x.abs()
    step = torch.where(magnitude < 2.0, 0.5, torch.where(magnitude < 4.0, 1.0, 2.0))
    return torch.round(x / step) * step


def sim8(x: Tensor, group: int) -> Tensor:
    """FP8 with one power-of-two scale per `group` last-axis elements (activations: 128; cached keys: 64). bf16 in and out."""
    blocks = x.float().unflatten(-1, (-1, group))
    scale = power_of_two_ceiling(blocks.abs().amax(-1, keepdim=True).clamp_min(1e-4) * _RECIPROCAL_448)
    return (e4m3((blocks / scale).clamp(-448.0, 448.0)) * scale).flatten(-2).to(x.dtype)


def sim4(x: Tensor, group: int = 32) -> Tensor:
    """FP4 with one power-of-two scale per group (indexer queries and keys). bf16 in and out."""
    blocks = x.float().unflatten(-1, (-1, group))
    scale = power_of_two_ceiling(blocks.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-126) * _RECIPROCAL_6)
    return (e2m1(blocks / scale) * scale).flatten(-2).to(x.dtype)


def hadamard(size: int, device: torch.device | str = "cpu") -> Tensor:
    """Normalised Sylvester-Hadamard matrix, fp32."""
    matrix = torch.ones(1, 1, device=device)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return matrix * size**-0.5


def sim4_e4m3(x: Tensor, group: int) -> Tensor:
    """FP4 with one E4M3 scale per group (V4.1's compressed entries). bf16 in and out."""
    blocks = x.float().unflatten(-1, (-1, group))
    scale = e4m3((blocks.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-9) / 6.0).clamp_max(448.0))
    return (e2m1(blocks / scale) * scale).flatten(-2).to(x.dtype)


def fp8_blocks(w: Tensor, rows: int = 128, columns: int = 128) -> tuple[Tensor, Tensor]:
    """Weight [N, K] as (E4M3 values [N, K], power-of-two scales [N/rows, K/columns]), both fp32."""
    n, k = w.shape
    blocks = w.float().reshape(n // rows, rows, k // columns, columns)
    scale = power_of_two_ceiling(blocks.abs().amax((1, 3)).clamp_min(1e-12) / 448.0)
    values = e4m3((blocks / scale[:, None, :, None]).clamp(-448.0, 448.0))
    return values.reshape(n, k), scale


def fp8_weight(w: Tensor, rows: int = 128, columns: int = 128) -> Tensor:
    """What a weight stored as FP8 blocks decodes to."""
    values, scale = fp8_blocks(w, rows, columns)
    n, k = w.shape
    return (values.reshape(n // rows, rows, k // columns, columns) * scale[:, None, :, None]).reshape(n, k)


def nvfp4_blocks(w: Tensor, global_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [..., N, K] as (E2M1 values, E4M3 block scales [..., N, K/16]); `global_scale` broadcasts over [..., 1, 1]."""
    blocks = w.float().unflatten(-1, (-1, 16))
    g = global_scale[..., None]
    # ModelOpt clamps stored weight scales to [2^-9, 448], so that no stored scale is zero
    scale = e4m3((blocks.abs().amax(-1, keepdim=True) / (6.0 * g)).clamp(2.0**-9, 448.0))
    values = e2m1(blocks / (scale * g))
    return values.flatten(-2), scale.squeeze(-1)


def nvfp4_global_scale(*tensors: Tensor) -> Tensor:
    """amax / 2688 per leading index of [..., N, K] tensors that share one scale; shape [..., 1, 1]."""
    amax = torch.stack([t.float().abs().amax((-2, -1), keepdim=True) for t in tensors]).amax(0)
    return (amax / 2688.0).clamp_min(1e-20)


def nvfp4_weight(w: Tensor, global_scale: Tensor) -> Tensor:
    """What a weight stored as NVFP4 decodes to."""
    values, scale = nvfp4_blocks(w, global_scale)
    return (values.unflatten(-1, (-1, 16)) * (scale * global_scale)[..., None]).flatten(-2)


def mxfp4_blocks(w: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [..., N, K] as (E2M1 values, power-of-two scales [..., N, K/32])."""
    blocks = w.float().unflatten(-1, (-1, 32))
    scale = power_of_two_ceiling(blocks.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-120) / 6.0)
    return e2m1(blocks / scale).flatten(-2), scale.squeeze(-1)


def mxfp4_weight(w: Tensor) -> Tensor:
    """What a weight stored as MXFP4 decodes to."""
    values, scale = mxfp4_blocks(w)
    return (values.unflatten(-1, (-1, 32)) * scale[..., None]).flatten(-2)
