"""Weight blocks of the release's checkpoints as blocks of GGUF. Python's standard library only, on whole tensors at a time:
slices with a stride and bytes.translate do what would otherwise be a loop over elements.

FP4 is repacked without loss: codes and scale bytes mean the same in both files, only their places differ.

    safetensors      byte i of a row holds elements 2i (low nibble) and 2i + 1 (high); scales in a tensor of their own
    GGUF MXFP4       32 elements: 1 scale (e8m0), then 16 bytes; byte j holds elements j (low) and j + 16 (high)
    GGUF NVFP4       64 elements: 4 scales (e4m3, one for 16 elements), then 4 x 8 bytes; byte j of a group of 16 holds
                     elements j (low) and j + 8 (high)

FP8 becomes Q8_0 (32 elements: 1 scale as float16, 32 int8), the eight-bit format that llama.cpp's own converter chooses. It rounds each weight to within half of 1/127 of the largest of its block.
"""

from __future__ import annotations

import math
import struct

MXFP4_BLOCK, MXFP4_BYTES = 32, 17
NVFP4_BLOCK, NVFP4_GROUP, NVFP4_BYTES = 64, 16, 36
Q8_0_BLOCK, Q8_0_BYTES = 32, 34
FP8_BLOCK = 128  # Rows and columns of FP8 weights that share a scale.

E4M3_NAN = 0x7F
E8M0_BIAS, E8M0_NAN = 127, 0xFF

_LOW = bytes(b & 15 for b in range(256))
_LOW_RAISED = bytes((b & 15) << 4 for b in range(256))
_HIGH = bytes(b >> 4 for b in range(256))
_HIGH_KEPT = bytes(b & 0xF0 for b in range(256))
_MAGNITUDE = bytes(b & 0x7F for b in range(256))


def e4m3(code: int) -> float:
    """The value of an FP8 e4m3 code; its two NaN codes are refused before anything is decoded."""
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -magnitude if code & 0x80 else magnitude


def _joined(low: bytes, high: bytes) -> bytes:
    """Byte by byte `low | high`."""
    return (int.from_bytes(low, "little") | int.from_bytes(high, "little")).to_bytes(len(low), "little")


def _pairs_of_halves(codes: bytes, out: bytearray, group: int, groups: int, header: int) -> None:
    """Fills the code bytes of `out`, made of blocks of `header` bytes and then `groups` groups of `group` elements each. There the second
    half of a group stands in the high nibbles of the first. In `codes` neighbours share a byte."""
    in_stride, out_stride = group * groups // 2, len(out) * group * groups // (2 * len(codes))
    # Elements of even number in bits 0 to 3 and in bits 4 to 7, and of odd number.
    low, raised = (codes.translate(_LOW), codes.translate(_HIGH)), (codes.translate(_LOW_RAISED), codes.translate(_HIGH_KEPT))
    half = group // 2
    for g in range(groups):
        for j in range(half):
            first, second = g * group + j, g * group + j + half
            out[header + g * half + j::out_stride] = _joined(low[first % 2][first // 2::in_stride],
                                                             raised[second % 2][second // 2::in_stride])


def mxfp4(codes: bytes, scales: bytes) -> bytes:
    """MXFP4 blocks from packed e2m1 codes and one e8m0 scale for 32 elements, rows one after another."""
    if len(codes) != len(scales) * MXFP4_BLOCK // 2:
        raise ValueError(f"MXFP4: {len(codes)} bytes of codes, {len(scales)} scales")
    if E8M0_NAN in scales:
        raise ValueError("MXFP4: a scale is NaN")
    out = bytearray(len(scales) * MXFP4_BYTES)
    out[0::MXFP4_BYTES] = scales
    _pairs_of_halves(codes, out, MXFP4_BLOCK, 1, 1)
    return bytes(out)


def nvfp4(codes: bytes, scales: bytes) -> bytes:
    """NVFP4 blocks from packed e2m1 codes and one e4m3 scale for 16 elements. The second-level scale has no place in a
    block; GGUF keeps it as a tensor."""
    if len(codes) != len(scales) * NVFP4_GROUP // 2 or len(scales) % 4 != 0:
        raise ValueError(f"NVFP4: {len(codes)} bytes of codes, {len(scales)} scales; blocks hold {NVFP4_BLOCK} elements")
    if max(scales) >= E4M3_NAN:
        raise ValueError("NVFP4: a block scale is negative or NaN")
    out = bytearray(len(scales) // 4 * NVFP4_BYTES)
    for group in range(4):
        out[group::NVFP4_BYTES] = scales[group::4]
    _pairs_of_halves(codes, out, NVFP4_GROUP, 4, 4)
    return bytes(out)


def _rounded(value: float) -> int:
    """The nearest integer, halves away from zero, as C's roundf."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _q8_0_codes(largest: int) -> bytes:
    """For each e4m3 code its int8 in a block whose largest magnitude is the code `largest`: a table for bytes.translate.
    Block scales do not appear, because the element's and the largest one's are the same."""
    if largest == 0:
        return bytes(256)
    per_unit = 127 / e4m3(largest)
    # Codes above `largest` do not occur in such a block.
    return bytes(_rounded(e4m3(c) * per_unit) & 255 if c & 0x7F <= largest else 0 for c in range(256))


_Q8_0_CODES = [_q8_0_codes(largest) for largest in range(E4M3_NAN)]


def q8_0(codes: bytes, scales: bytes, columns: int) -> bytes:
    """Q8_0 blocks from e4m3 codes [rows, columns] and e8m0 scales [ceil(rows/128), ceil(columns/128)]."""
    rows, rest = divmod(len(codes), columns)
    scale_columns = -(-columns // FP8_BLOCK)
    if rest or columns % Q8_0_BLOCK or len(scales) != -(-rows // FP8_BLOCK) * scale_columns:
        raise ValueError(f"FP8: {len(codes)} codes in rows of {columns} with {len(scales)} scales")
    magnitudes = codes.translate(_MAGNITUDE)
    if max(magnitudes) == E4M3_NAN or E8M0_NAN in scales:
        raise ValueError("FP8: an element or a scale is NaN")
    # Scale of the Q8_0 block by scale byte and largest magnitude, made when first asked for.
    float16: dict[tuple[int, int], bytes] = {}
    pieces = []
    at = 0
    for row in range(rows):
        row_scales = scales[row // FP8_BLOCK * scale_columns:]
        for column in range(0, columns, Q8_0_BLOCK):
            largest = max(magnitudes[at:at + Q8_0_BLOCK])
            key = (row_scales[column // FP8_BLOCK], largest)
            scale = float16.get(key)
            if scale is None:
                scale = float16[key] = struct.pack("<e", e4m3(largest) / 127 * 2.0 ** (key[0] - E8M0_BIAS))
            pieces.append(scale)
            pieces.append(codes[at:at + Q8_0_BLOCK].translate(_Q8_0_CODES[largest]))
            at += Q8_0_BLOCK
    return b"".join(pieces)


def f32_of_bf16(data: bytes) -> bytes:
    """Exact: bfloat16 is the upper half of float32."""
    out = bytearray(2 * len(data))
    out[2::4], out[3::4] = data[0::2], data[1::2]
    return bytes(out)


def i32_of_i64(data: bytes) -> bytes:
    """Token and expert ids; a number that int32 cannot hold or a negative one is refused."""
    out = bytearray(len(data) // 2)
    for byte in range(4):
        out[byte::4] = data[byte::8]
        if any(data[byte + 4::8]):
            raise ValueError("ids: one is beyond 32 bits")
    if data and max(data[3::8]) >= 0x80:
        raise ValueError("ids: one is beyond 31 bits")
    return bytes(out)
