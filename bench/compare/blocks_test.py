"""Blocks of GGUF decoded element by element, as the formats are defined, against the checkpoint's numbers decoded the same
way. Standard library only, so that it runs in every ./dev test."""

from __future__ import annotations

import json
import random
import struct
import tempfile
import unittest
from pathlib import Path

import blocks
import unit_scales

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def packed(codes: list[int]) -> bytes:
    """Nibbles as checkpoints store them: the even element low."""
    return bytes(codes[i] | codes[i + 1] << 4 for i in range(0, len(codes), 2))


class BlocksTest(unittest.TestCase):
    def setUp(self) -> None:
        self.random = random.Random(1)

    def codes(self, count: int) -> list[int]:
        return [self.random.randrange(16) for _ in range(count)]

    def test_mxfp4_keeps_every_number(self) -> None:
        codes, scales = self.codes(96), bytes([120, 3, 254])
        block = blocks.mxfp4(packed(codes), scales)
        self.assertEqual(len(block), 3 * 17)
        for element, code in enumerate(codes):
            at, inside = divmod(element, 32)
            byte = block[17 * at + 1 + inside % 16]
            value = E2M1[byte >> 4 if inside >= 16 else byte & 15] * 2.0 ** (block[17 * at] - 127)
            self.assertEqual(value, E2M1[code] * 2.0 ** (scales[at] - 127), element)

    def test_nvfp4_keeps_every_number(self) -> None:
        codes, scales = self.codes(128), bytes([0x38, 0x40, 0x08, 0x7E, 0x01, 0x30, 0x29, 0x28])
        block = blocks.nvfp4(packed(codes), scales)
        self.assertEqual(len(block), 2 * 36)
        for element, code in enumerate(codes):
            at, inside = divmod(element, 64)
            group, inside = divmod(inside, 16)
            byte = block[36 * at + 4 + 8 * group + inside % 8]
            value = E2M1[byte >> 4 if inside >= 8 else byte & 15] * blocks.e4m3(block[36 * at + group])
            self.assertEqual(value, E2M1[code] * blocks.e4m3(scales[4 * at + group]), element)

    def test_q8_0_rounds_to_the_nearest_step(self) -> None:
        rows, columns = 130, 160  # Neither is a multiple of 128: four scales.
        codes = bytes(self.random.choice([c for c in range(256) if c & 0x7F != 0x7F]) for _ in range(rows * columns))
        codes = bytes(32) + codes[32:]  # A block of zeros.
        scales = bytes([117, 118, 119, 112])
        out = blocks.q8_0(codes, scales, columns)
        self.assertEqual(len(out), rows * columns // 32 * 34)
        self.assertEqual(out[:34], bytes(34))
        for row in range(rows):
            for column in range(columns):
                element = row * columns + column
                start = element // 32 * 34
                (step,) = struct.unpack_from("<e", out, start)
                (quantised,) = struct.unpack_from("<b", out, start + 2 + element % 32)
                exact = blocks.e4m3(codes[element]) * 2.0 ** (scales[row // 128 * 2 + column // 128] - 127)
                # Half a step, and what float16 (11 bits) loses of the step over 127 of them.
                self.assertLessEqual(abs(quantised * step - exact), step * (0.5 + 127 * 2.0**-11), (row, column))

    def test_e4m3(self) -> None:
        for code, value in ((0x00, 0), (0x01, 2.0**-9), (0x08, 2.0**-6), (0x38, 1), (0x39, 1.125), (0x7E, 448), (0xB8, -1)):
            self.assertEqual(blocks.e4m3(code), value, hex(code))

    def test_second_level_scales_are_folded(self) -> None:
        self.assertEqual([unit_scales.nearest_e4m3(value) for value in (0, 2.0**-9, 1.06, 1.0625, 1.19, 448, 1e6)],
                         [0, 1, 0x38, 0x38, 0x3A, 0x7E, 0x7E])
        header = json.dumps({"x.weight_scale": {"dtype": "F8_E4M3", "shape": [1, 3], "data_offsets": [0, 3]},
                             "x.weight_scale_2": {"dtype": "F32", "shape": [], "data_offsets": [3, 7]},
                             "y.weight": {"dtype": "U8", "shape": [1], "data_offsets": [7, 8]}}).encode()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            path.write_bytes(struct.pack("<Q", len(header)) + header + b"\x58\x60\x00" + struct.pack("<f", 0.125) + b"\x58")
            unit_scales.fold(Path(folder))
            # 16, 32 and 0 times an eighth.
            self.assertEqual(path.read_bytes()[8 + len(header):], b"\x40\x48\x00" + struct.pack("<f", 1) + b"\x58")

    def test_bf16_and_ids(self) -> None:
        self.assertEqual(struct.unpack("<3f", blocks.f32_of_bf16(bytes([0x80, 0x3F, 0x00, 0xC0, 0x40, 0x40]))), (1, -2, 3))
        self.assertEqual(struct.unpack("<2i", blocks.i32_of_i64(struct.pack("<2q", 70000, 3))), (70000, 3))
        for number in (2**31, 2**32, -1):
            with self.assertRaises(ValueError):
                blocks.i32_of_i64(struct.pack("<q", number))

    def test_what_does_not_fit_is_refused(self) -> None:
        for bad in (lambda: blocks.mxfp4(bytes(15), bytes(1)), lambda: blocks.mxfp4(bytes(16), b"\xff"),
                    lambda: blocks.nvfp4(bytes(24), bytes(3)), lambda: blocks.nvfp4(bytes(32), b"\x01\x02\x03\x80"),
                    lambda: blocks.q8_0(bytes(64), bytes(2), 64), lambda: blocks.q8_0(bytes(48), bytes(1), 48),
                    lambda: blocks.q8_0(bytes(31) + b"\xff", bytes(1), 32), lambda: blocks.q8_0(bytes(32), b"\xff", 32)):
            with self.assertRaises(ValueError):
                bad()


if __name__ == "__main__":
    unittest.main()
