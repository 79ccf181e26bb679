"""Checkpoints as others' tools save them: the small model's tensors under other words, names and files give the small model's answer."""

import json
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

from dsv4_process import BINARY, PATIENCE, TINY

ANSWER = "The capital of France is Paris."
FRAME = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<｜begin▁of▁sentence｜>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
         "special_tokens": {"<｜begin▁of▁sentence｜>": {"id": "<｜begin▁of▁sentence｜>", "ids": [0], "tokens": ["<｜begin▁of▁sentence｜>"]}}}
PADDING = {"strategy": {"Fixed": 512}, "direction": "Right", "pad_to_multiple_of": 8, "pad_id": 2, "pad_type_id": 0, "pad_token": "x"}
CUT = {"direction": "Left", "max_length": 8, "strategy": "OnlyFirst", "stride": 2}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def linear(**weights):
    return {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", **weights}}}, "ignore": []}


BLOCKS = {
    "none": None, "a tool of tomorrow": {"quant_method": "tomorrow"}, "Quark": {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [128, 128]}}},
    "compressed-tensors": linear(strategy="block", block_structure=[128, 128]), "compressed-tensors in a text": linear(strategy="block", block_structure="128x128"),
    "ModelOpt": {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO", "exclude_modules": ["lm_head"]},
    "AutoRound": {"quant_method": "auto-round", "bits": 8, "data_type": "fp8", "group_size": [128, 128]}, "torchao": {"quant_method": "torchao", "quant_type": {}},
}
# By name: the scales' name, their dtype, and the words.
GROUPS_OF_32 = {
    "compressed-tensors": ("weight_scale", "U8", linear(strategy="group", group_size=32)),
    "ModelOpt": ("weight_scale", "U8", {"quant_method": "modelopt", "quant_algo": "MXFP8", "config_groups": {"g": {"weights": {"num_bits": 8, "group_size": 32}}}}),
    "Quark": ("weight_scale", "U8", {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_group", "group_size": 32}}}),
    "AutoRound": ("weight_scale", "U8", {"quant_method": "auto-round", "bits": 8, "data_type": "mx_fp", "group_size": 32}),
    "blocks": ("weight_scale_inv", "U8", {"quant_method": "mxfp8", "weight_block_size": [1, 32]}),
    "E8M0": ("weight_scale_inv", "F8_E8M0", {"quant_method": "fp8"}), "none": ("scale", "U8", None),
}
MXFP4 = {"none": None, "mxfp4": {"quant_method": "mxfp4"}, "ModelOpt": {"quant_method": "modelopt", "quant_algo": "MXFP4"},
         "Quark": {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}}},
         "compressed-tensors": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32}}}},
         "AutoRound": {"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp", "group_size": 32}}


def read_tensors(path):
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write_tensors(path, tensors):
    """(name, dtype, shape, bytes) of each."""
    header, at = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for *_, data in tensors))


class OthersWords(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def copy(self, source=TINY):
        copy = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        for file in filter(pathlib.Path.is_file, source.iterdir()):
            shutil.copy(file, copy)
        return copy

    def edit(self, path, change):
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value, ensure_ascii=False))

    def quantization(self, folder, words):
        def change(config):
            config.pop("quantization_config", None)
            if words is not None:
                config["quantization_config"] = words

        self.edit(folder / "config.json", change)

    def run_one(self, folder):
        return subprocess.run([BINARY, "run", "-q", "-m", folder, "--temperature", "0", "--reasoning", "hide", "What is the capital of France?"],
                              capture_output=True, text=True, timeout=PATIENCE)

    def check(self, folder):
        done = self.run_one(folder)
        self.assertIn(ANSWER, done.stdout, done.stderr)
        shutil.rmtree(folder)

    def test_parts_of_a_tokenizer_that_work_on_whole_inputs(self):
        for change in ({"truncation": CUT}, {"padding": PADDING}, {"post_processor": FRAME}, {"post_processor": BYTES}, {"post_processor": None},
                       {"post_processor": {"type": "Sequence", "processors": [BYTES, FRAME]}}, {"post_processor": {"type": "BertProcessing", "sep": ["x", 2], "cls": ["y", 0]}},
                       {"truncation": CUT, "padding": PADDING, "post_processor": FRAME}):
            with self.subTest(change=change):
                folder = self.copy()
                self.edit(folder / "tokenizer.json", lambda value, change=change: value.update(change))
                self.check(folder)

    def test_words_of_quantisation(self):
        for name, words in BLOCKS.items():
            with self.subTest(words=name):
                folder = self.copy()
                self.quantization(folder, words)
                self.check(folder)

    def test_scales_of_32_values(self):
        header, body = read_tensors(TINY / "model.safetensors")
        for case, (suffix, dtype, words) in GROUPS_OF_32.items():
            tensors = []
            for name, one in header.items():
                if name == "__metadata__":
                    continue
                data, shape, kind = body[one["data_offsets"][0] : one["data_offsets"][1]], one["shape"], one["dtype"]
                if name.startswith("layers.") and name.endswith(".scale"):  # Each scale of 128 x 128 again for its 128 rows and 4 groups.
                    rows, columns = header[name[:-5] + "weight"]["shape"]
                    data = bytes(data[row // 128 * shape[1] + column * 32 // 128] for row in range(rows) for column in range(columns // 32))
                    name, shape, kind = name[:-5] + suffix, [rows, columns // 32], dtype
                tensors.append((name, kind, shape, data))
            with self.subTest(words=case):
                folder = self.copy()
                write_tensors(folder / "model.safetensors", tensors)
                self.quantization(folder, words)
                self.check(folder)

    def test_experts_of_four_bits_as_bytes(self):
        source = self.folder / "mxfp4"
        subprocess.run([BINARY, "convert", TINY, source, "--experts", "mxfp4"], check=True, capture_output=True, timeout=PATIENCE)
        header, body = read_tensors(source / "model.safetensors")
        tensors = []
        for name, one in header.items():
            if name == "__metadata__":
                continue
            expert = ".ffn.experts." in name
            as_others = name[:-5] + "weight_scale" if expert and name.endswith(".scale") else name
            tensors.append((as_others, "U8" if expert else one["dtype"], one["shape"], body[one["data_offsets"][0] : one["data_offsets"][1]]))
        for case, words in MXFP4.items():
            with self.subTest(words=case):
                folder = self.copy(source)
                write_tensors(folder / "model.safetensors", tensors)
                self.quantization(folder, words)
                self.check(folder)

    def test_places_of_the_rope(self):
        def flat(config, **more):
            config["rope_parameters"] = {**config.pop("rope_scaling"), "rope_type": "yarn", "rope_theta": config.pop("rope_theta"), **more}

        def inside(config):
            config["rope_scaling"]["rope_theta"] = config.pop("rope_theta")

        def both(config):
            config["rope_parameters"] = {**config["rope_scaling"], "rope_type": "yarn", "rope_theta": config["rope_theta"]}

        for change in (flat, inside, both):
            with self.subTest(change=change.__name__):
                folder = self.copy()
                self.edit(folder / "config.json", change)
                self.check(folder)
        folder = self.copy()
        self.edit(folder / "config.json", lambda config: (both(config), config["rope_parameters"].update(rope_theta=12345)))
        done = self.run_one(folder)
        self.assertEqual((done.returncode, "rope_theta" in done.stderr), (3, True), done.stderr)


if __name__ == "__main__":
    unittest.main()
