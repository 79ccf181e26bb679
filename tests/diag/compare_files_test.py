"""`dsv4 diagnose compare --with DUMP` of a healthy run against damaged copies of the small model. The op at fault is named, not one that
only carries an error on. So are the expert and the token."""

import json
import pathlib
import shutil
import struct
import tempfile
import unittest

from dsv4_process import TINY, dsv4
from safetensors_copy import Copy

NUM_TOKENS = 400


def truncate_to_bf16(copy):
    for name in copy.names("weight_scale_2"):
        data = copy.bytes(name)
        data[:] = b"\0\0" + bytes(data[2:])


def exchange_rows(copy, name, width, first, second):
    data = copy.bytes(name)
    a, b = (bytes(data[row * width:(row + 1) * width]) for row in (first, second))
    data[first * width:(first + 1) * width], data[second * width:(second + 1) * width] = b, a


class Blame(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        state, ids = 1, []
        for _ in range(NUM_TOKENS):
            state = (state * 1103515245 + 12345) % (1 << 31)
            ids.append(state // 7 % 5000)
        cls.ids = ids
        (cls.directory / "ids").write_text(str(ids))
        process = dsv4("logits", "-m", TINY, "--tokens", cls.directory / "ids", "--output", cls.directory / "logits.npy",
                       "--dump", cls.directory / "dump")
        if process.returncode != 0:
            raise AssertionError(process.stderr)

    def compare(self, damage):
        copy = Copy(TINY, self.directory / "copy")
        self.addCleanup(shutil.rmtree, copy.directory)
        damage(copy)
        process = dsv4("diagnose", "compare", "-m", copy.save(), "--with", self.directory / "dump", "--tokens", self.directory / "ids",
                       "--json")
        self.assertEqual(process.returncode, 1, process.stderr)
        (report,) = json.loads(process.stdout)["checks"]
        return report

    def test_a_row_of_a_hash_table(self):
        token = self.ids[17]

        def damage(copy):
            width = 4
            data = copy.bytes("layers.0.ffn.gate.tid2eid")
            row = list(struct.unpack_from(f"<{width}q", data, token * width * 8))
            unused = next(expert for expert in range(16) if expert not in row)
            struct.pack_into("<q", data, token * width * 8, unused)

        report = self.compare(damage)
        self.assertEqual((report["place"]["layer"], report["place"]["tensor"]), (0, "ffn.router.indices"), report["headline"])
        self.assertIn(f"token id {token} ", report["headline"])

    def test_scales_of_all_experts(self):
        report = self.compare(truncate_to_bf16)
        self.assertEqual((report["place"]["layer"], report["place"]["op"]), (0, "routed_experts"), report["headline"])

    def test_rows_of_a_compressor(self):
        name = "layers.3.attn.compressor.ape"

        def damage(copy):
            rows, width = copy.header[name]["shape"]
            size = len(copy.bytes(name)) // rows
            self.assertGreater(width, 0)
            exchange_rows(copy, name, size, 3, 4)

        report = self.compare(damage)
        self.assertEqual((report["place"]["layer"], report["place"]["tensor"]), (3, "attn.compressor.pooled"), report["headline"])

    def test_an_expert(self):
        def damage(copy):
            data = copy.bytes("layers.4.ffn.experts.11.w2.weight")
            data[:] = bytes(data[::-1])

        report = self.compare(damage)
        place = report["place"]
        self.assertEqual((place["layer"], place["tensor"], place.get("experts")), (4, "ffn.routed", [11]), report["headline"])
        self.assertIn("expert 11", report["headline"])


if __name__ == "__main__":
    unittest.main()
