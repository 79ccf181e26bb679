"""Writing checkpoints: values to stored bytes in every weight format, and safetensors files."""

import json
from pathlib import Path

import numpy as np

from oracle.formats import E2M1, E4M3, ceil_power_of_two, round_bf16, round_e2m1, round_e4m3

Tensor = tuple[str, np.ndarray]  # safetensors dtype name, array of the stored integers or floats

E4M3_BYTE = {float(value): byte for byte, value in enumerate(E4M3) if byte < 0x7F}
E2M1_CODE = {float(value): code for code, value in enumerate(E2M1[:8])}


def to_bytes(values: np.ndarray, table: dict[float, int], sign_bit: int) -> np.ndarray:
    """Bytes of values that lie on the table's grid, sign included."""
    grid = np.array(sorted(table))
    code = np.array([table[v] for v in grid], np.uint8)[np.searchsorted(grid, np.abs(values))]
    return code | np.where(np.signbit(values), np.uint8(sign_bit), np.uint8(0)).astype(np.uint8)


def f32(x: np.ndarray) -> dict[str, Tensor]:
    return {"": ("F32", x.astype(np.float32))}


def bf16(x: np.ndarray) -> dict[str, Tensor]:
    return {"weight": ("BF16", (round_bf16(x).view(np.uint32) >> 16).astype(np.uint16))}


def plain_f32(x: np.ndarray) -> dict[str, Tensor]:
    return {"weight": ("F32", x.astype(np.float32))}


def f16(x: np.ndarray) -> dict[str, Tensor]:
    return {"weight": ("F16", x.astype(np.float16))}


def _tiles(x: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Largest magnitude of each rows x columns tile, edge tiles cut short."""
    n, k = x.shape
    padded = np.zeros((-(-n // rows) * rows, -(-k // columns) * columns), np.float32)
    padded[:n, :k] = np.abs(x)
    return padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns).max((1, 3))


def fp8_block(x: np.ndarray, block: tuple[int, int] = (128, 128), scale: str = "ue8m0") -> dict[str, Tensor]:
    """e4m3 elements with one scale per block: a power of two as an exponent byte, or any float32."""
    amax = np.maximum(_tiles(x, *block), np.float32(1e-12))
    if scale == "ue8m0":
        values = ceil_power_of_two(amax * np.float32(1 / 448))
        stored: Tensor = ("F8_E8M0", (np.log2(values) + 127).astype(np.uint8))
    else:
        values = (amax / np.float32(448)).astype(np.float32)
        stored = ("F32", values)
    spread = np.repeat(np.repeat(values.astype(np.float64), block[0], 0)[:x.shape[0]], block[1], 1)[:, :x.shape[1]]
    codes = to_bytes(round_e4m3(np.clip(x / spread, -448, 448)), E4M3_BYTE, 0x80)
    return {"weight": ("F8_E4M3", codes), "scale": stored}


def _pack(codes: np.ndarray) -> np.ndarray:
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def mxfp4(x: np.ndarray) -> dict[str, Tensor]:
    """e2m1 with an exponent byte per 32 elements of a row."""
    n, k = x.shape
    groups = x.reshape(n, k // 32, 32)
    scale = ceil_power_of_two(np.maximum(np.abs(groups).max(-1), np.float32(2.0**-100)) * np.float32(1 / 6))
    values = round_e2m1(np.clip(groups / scale[..., None], -6, 6)).reshape(n, k)
    return {"weight": ("I8", _pack(to_bytes(values, E2M1_CODE, 8))), "scale": ("F8_E8M0", (np.log2(scale) + 127).astype(np.uint8))}


def nvfp4_scales(x: np.ndarray, tensor_scale: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """(codes [n,k], block scale values [n,k/16]): elements are divided by the rounded scale, as the format's definition wants."""
    n, k = x.shape
    groups = x.astype(np.float32).reshape(n, k // 16, 16)
    wanted = np.abs(groups).max(-1) / (np.float32(6) * tensor_scale)
    scale = round_e4m3(np.minimum(wanted, 448))
    divisor = (scale.astype(np.float32) * tensor_scale)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(divisor > 0, groups / divisor, 0)
    values = round_e2m1(np.clip(ratio, -6, 6)).reshape(n, k)
    return to_bytes(values, E2M1_CODE, 8), scale


def nvfp4(x: np.ndarray, suffixes: str = "modelopt", tensor_scale: np.float32 | None = None, scalar_shape: tuple = ()) -> dict[str, Tensor]:
    """e2m1 with an e4m3 scale per 16 elements and one float32 per tensor, in either suffix family.

    `input_scale` is written with an absurd value on purpose: nothing may multiply by it.
    """
    if tensor_scale is None:
        tensor_scale = np.float32(np.abs(x).max() / 2688)
    divisor = np.float32(1) / tensor_scale
    if suffixes == "compressed-tensors":
        tensor_scale = np.float32(1) / divisor  # what a reader will see
    codes, scale = nvfp4_scales(x, tensor_scale)
    blocks: Tensor = ("F8_E4M3", to_bytes(scale, E4M3_BYTE, 0x80))
    packed: Tensor = ("U8", _pack(codes))

    def scalar(value) -> Tensor:
        return "F32", np.full(scalar_shape, value, np.float32)

    if suffixes == "compressed-tensors":
        return {"weight_packed": packed, "weight_scale": blocks, "weight_global_scale": scalar(divisor),
                "input_global_scale": scalar(977.0)}
    return {"weight": packed, "weight_scale": blocks, "weight_scale_2": scalar(tensor_scale), "input_scale": scalar(977.0)}


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset, parts = 0, []
    for name, (dtype, array) in sorted(tensors.items()):
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        parts.append(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
