"""Number formats: bf16, FP8 e4m3fn, e8m0 scales, FP4 e2m1; rounding to each, decoding of stored bytes.

Values live in float32 or float64 arrays; "rounding to e4m3" returns values on the e4m3 grid, not bytes.
"""

import numpy as np

FP8_MAX = 448.0
FP4_MAX = 6.0
# The reciprocals the release multiplies by, as exact float32 bit patterns.
RECIPROCAL_448 = np.array([0x3B124925], np.uint32).view(np.float32)[0]
RECIPROCAL_6 = np.array([0x3E2AAAAB], np.uint32).view(np.float32)[0]


def _e4m3_table() -> np.ndarray:
    table = np.zeros(256, np.float64)
    for byte in range(256):
        sign = -1.0 if byte >> 7 else 1.0
        exponent, mantissa = (byte >> 3) & 15, byte & 7
        if exponent == 15 and mantissa == 7:
            magnitude = np.nan
        elif exponent == 0:
            magnitude = mantissa * 2.0**-9
        else:
            magnitude = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        table[byte] = sign * magnitude
    return table


E4M3 = _e4m3_table()
E8M0 = np.array([2.0 ** (byte - 127) for byte in range(255)] + [np.nan])
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def round_bf16(x: np.ndarray) -> np.ndarray:
    """Nearest-even bf16, as float32."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def round_e4m3(x: np.ndarray) -> np.ndarray:
    """Nearest-even e4m3fn of |x| <= 448, as float64."""
    x = x.astype(np.float64)
    _, exponent = np.frexp(np.abs(x))
    step = np.ldexp(1.0, np.maximum(exponent - 1, -6) - 3)
    return np.rint(x / step) * step


def round_e2m1(x: np.ndarray) -> np.ndarray:
    """Nearest e2m1 of |x| <= 6, ties to the even code, as float64."""
    x = x.astype(np.float64)
    magnitude = np.abs(x)
    step = np.where(magnitude < 2, 0.5, np.where(magnitude < 4, 1.0, 2.0))
    return np.rint(x / step) * step


def ceil_power_of_two(x: np.ndarray) -> np.ndarray:
    """2^ceil(log2 x) of positive normal float32 values, by exponent bits."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    exponent = ((bits >> 23) & 255).astype(np.int64) - 127 + ((bits & 0x7FFFFF) != 0)
    return np.ldexp(1.0, exponent)


def _quantise(x: np.ndarray, group: int, floor: np.float32, reciprocal: np.float32, limit: float, rounder) -> np.ndarray:
    shape = x.shape
    if shape[-1] % group:
        raise ValueError(f"quantise: last dimension {shape[-1]} is no multiple of the group {group}")
    groups = x.astype(np.float32).reshape(*shape[:-1], shape[-1] // group, group)
    amax = np.maximum(np.abs(groups).max(-1, keepdims=True), floor)
    scale = ceil_power_of_two(amax * reciprocal)
    return (rounder(np.clip(groups / scale, -limit, limit)) * scale).reshape(shape)


def quantise_fp8(x: np.ndarray, group: int) -> np.ndarray:
    """Values of x after FP8 rounding with one power-of-two scale per group of the last dimension (exact in float64)."""
    return _quantise(x, group, np.float32(1e-4), RECIPROCAL_448, FP8_MAX, round_e4m3)


def quantise_fp4(x: np.ndarray, group: int) -> np.ndarray:
    """The same with e2m1 elements."""
    return _quantise(x, group, np.float32(6 * 2.0**-126), RECIPROCAL_6, FP4_MAX, round_e2m1)


def unpack_e2m1(packed: np.ndarray, high_first: bool = False) -> np.ndarray:
    """[..., K/2] bytes to [..., K] values; the low nibble is the even element."""
    packed = packed.view(np.uint8)
    values = np.empty(packed.shape[:-1] + (packed.shape[-1] * 2,), np.float64)
    even, odd = (packed >> 4, packed & 15) if high_first else (packed & 15, packed >> 4)
    values[..., 0::2] = E2M1[even]
    values[..., 1::2] = E2M1[odd]
    return values


def hadamard_matrix(size: int) -> np.ndarray:
    """Walsh-Hadamard matrix in natural (Sylvester) order, entries +-1."""
    matrix = np.array([[1.0]])
    while matrix.shape[0] < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
