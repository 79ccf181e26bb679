"""Hostile checkpoints: each ends with exit code 3, a message that names file, tensor or key, and nothing on stdout.

The damage is done to golden checkpoints of this repository, so that everything but the one fault is sound; `files` holds
a few whole files as they came to be found in practice.
"""

import copy
import json
import os
import random
import re
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

from checkpoint import Checkpoint, Tensor, safetensors

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden" / "models"
BINARY = os.environ["DSV4_BINARY"]
LAYER = "layers.1.attn."


def dsv4(*arguments):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=600, check=False)


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.release = Checkpoint.read(GOLDEN / "fp8_mxfp4")
        cls.nvfp4 = Checkpoint.read(GOLDEN / "nvfp4_experts")

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.tokens = Path(self.temporary.name) / "tokens"
        self.tokens.write_text("1 2 3")
        self.count = 0

    def directory(self):
        self.count += 1
        return Path(self.temporary.name) / f"m{self.count}"

    def commands(self, directory):
        output = directory.with_suffix(".npy")
        yield dsv4("inspect", "-m", directory)
        yield dsv4("logits", "-m", directory, "--tokens", self.tokens, "--output", output)
        self.assertFalse(output.exists() and output.stat().st_size > 0, "a partial run left its output")

    def refuse_directory(self, directory, *names):
        """Both commands refuse; the message names every one of `names`."""
        for process in self.commands(directory):
            self.assertEqual(process.returncode, 3, process.stderr)
            self.assertEqual(process.stdout, "")
            for name in names:
                self.assertIn(name, process.stderr)

    def refuse(self, checkpoint, *names):
        directory = self.directory()
        checkpoint.write(directory)
        self.refuse_directory(directory, *names)

    def refuse_file(self, content, *names):
        """A whole model.safetensors in place of the sound one."""
        checkpoint = copy.copy(self.release)
        checkpoint.files = {"model.safetensors": content}
        self.refuse(checkpoint, "model.safetensors", *names)

    def edited(self, checkpoint=None):
        return copy.deepcopy(checkpoint or self.release)

    def test_the_undamaged_checkpoints_load(self):
        for checkpoint in (self.release, self.nvfp4):
            directory = self.directory()
            checkpoint.write(directory)
            process = dsv4("inspect", "-m", directory, "--json")
            self.assertEqual(process.returncode, 0, process.stderr)
            self.assertEqual(json.loads(process.stdout)["tensors"], len(checkpoint.tensors))

    # --- the container ---

    def test_truncation_at_every_kind_of_place(self):
        whole = safetensors(self.release.header(), self.release.data())
        header_end = 8 + struct.unpack("<Q", whole[:8])[0]
        for size in (0, 1, 7, 8, 9, header_end // 2, header_end - 1, header_end, header_end + 1, len(whole) // 2,
                     len(whole) - 1):
            with self.subTest(size=size):
                self.refuse_file(whole[:size])
        self.refuse_file(whole + b"\0", "bytes of data")

    def test_header_lengths_that_lie(self):
        header, data = self.release.header(), self.release.data()
        for length in (2**64 - 1, 2**63, 2**32, 100_000_001, len(data) * 100):
            with self.subTest(length=length):
                self.refuse_file(safetensors(header, data, length=length), "header length")
        for length in (0, 1, 100):
            with self.subTest(length=length):
                self.refuse_file(safetensors(header, data, length=length), "not valid JSON")

    def test_headers_that_are_no_header(self):
        for header in (b"", b"null", b"[]", b"{", b'{"a"', b'{"a":}', b"\xff\xfe", b'{"\xff":{}}', b"{} {}",
                       b'{"a":' + b"[" * 100_000):
            with self.subTest(header=header[:20]):
                self.refuse_file(safetensors(header, b""), "header")

    def test_entries_that_lie(self):
        name = LAYER + "wkv.weight"
        size = len(self.release.tensors[name].data)
        begin = self.release.header()[name]["data_offsets"][0]
        lies = {
            "end past the data": {"data_offsets": [begin, 2**40]},
            "end overflows": {"data_offsets": [begin, 2**64 - 1]},
            "negative": {"data_offsets": [-8, size]},
            "backwards": {"data_offsets": [begin + size, begin]},
            "too long for its shape": {"data_offsets": [begin, begin + size + 8]},
            "over its neighbour": {"data_offsets": [begin - 8, begin + size - 8]},
            "three offsets": {"data_offsets": [begin, begin + size, begin + size]},
            "offsets of strings": {"data_offsets": ["0", "8"]},
            "no offsets": {"data_offsets": None},
            "shape times dtype overflows": {"shape": [2**32, 2**32]},
            "shape overflows on the way": {"shape": [2**62, 2**62, 0]},
            "negative shape": {"shape": [-128, -128]},
            "shape of floats": {"shape": [128.0, 128.0]},
            "shape in a shape": {"shape": [[128], 128]},
            "shape of many dims": {"shape": [1] * 1000 + [128, 128]},
            "shape too big": {"shape": [128, 129]},
            "no shape": {"shape": None},
            "dtype unknown": {"dtype": "F8_E9M9"},
            "dtype of another size": {"dtype": "F32"},
            "dtype a number": {"dtype": 7},
            "extra key": {"surprise": 1},
        }
        for lie, entry in lies.items():
            with self.subTest(lie=lie):
                header = self.release.header()
                header[name] = {**header[name], **entry}
                edited = copy.copy(self.release)
                edited.files = {"model.safetensors": safetensors(header, self.release.data())}
                self.refuse(edited, name)

    def test_names_cannot_drive_the_terminal(self):
        edited = self.edited()
        edited.tensors["\x1b]0;owned\x07"] = Tensor({"dtype": "U8", "shape": [1]}, b"x")
        self.refuse(edited, "\\x1b]0;owned\\x07")

    def test_gaps_are_refused(self):
        header, data = self.release.header(), self.release.data()
        for entry in list(header.values())[1:]:
            entry["data_offsets"] = [offset + 8 for offset in entry["data_offsets"]]
        first = list(self.release.tensors.values())[0].data
        self.refuse_file(safetensors(header, first + b"\0" * 8 + data[len(first):]), "gaps")

    def test_a_name_used_twice(self):
        text = json.dumps(self.release.header())
        name = LAYER + "wkv.weight"
        entry = json.dumps(self.release.header()[name])
        self.refuse_file(safetensors(f'{text[:-1]}, "{name}": {entry}}}'.encode(), self.release.data()), name, "twice")

    def test_order_in_the_header_is_free(self):
        directory = self.directory()
        self.release.write(directory)
        header = dict(reversed(self.release.header().items()))
        (directory / "model.safetensors").write_bytes(safetensors(header, self.release.data()))
        self.assertEqual(dsv4("inspect", "-m", directory).returncode, 0)

    def test_misaligned_tensors_give_the_same_answer(self):
        """The format promises no alignment: a header of odd length puts every tensor at an odd address."""
        logits = []
        for padding in (b"", b" "):
            directory = self.directory()
            self.release.write(directory)
            header = json.dumps(self.release.header()).encode()
            header += b" " * (-len(header) % 8) + padding
            (directory / "model.safetensors").write_bytes(safetensors(header, self.release.data()))
            output = directory.with_suffix(".npy")
            process = dsv4("logits", "-m", directory, "--tokens", self.tokens, "--output", output)
            self.assertEqual(process.returncode, 0, process.stderr)
            logits.append(output.read_bytes())
        self.assertEqual(logits[0], logits[1])

    def test_files_found_in_practice(self):
        for path in sorted((HERE / "files").iterdir()):
            with self.subTest(file=path.name):
                self.refuse_file(path.read_bytes())

    # --- shards ---

    def sharded(self, weight_map, shards=2):
        """The release checkpoint in shards by hand; weight_map(honest map) may lie."""
        directory = self.directory()
        self.release.write(directory)
        (directory / "model.safetensors").unlink()
        names = list(self.release.tensors)
        honest = {}
        for i in range(shards):
            part = names[i::shards]
            piece = Checkpoint({}, {name: self.release.tensors[name] for name in part})
            (directory / f"m{i}.safetensors").write_bytes(safetensors(piece.header(), piece.data()))
            honest.update({name: f"m{i}.safetensors" for name in part})
        index = weight_map(honest)
        text = index if isinstance(index, str) else json.dumps({"metadata": {}, "weight_map": index})
        (directory / "model.safetensors.index.json").write_text(text)
        return directory

    def test_an_honest_index_loads(self):
        self.assertEqual(dsv4("inspect", "-m", self.sharded(lambda honest: honest)).returncode, 0)

    def test_indexes_that_lie(self):
        name = LAYER + "wkv.weight"
        lies = {
            "missing shard": (lambda m: {**m, name: "m9.safetensors"}, "m9.safetensors"),
            "wrong shard": (lambda m: {**m, name: "m1.safetensors" if m[name] == "m0.safetensors" else "m0.safetensors"}, name),
            "tensor nowhere": (lambda m: {**m, "ghost": "m0.safetensors"}, "ghost"),
            "tensor not listed": (lambda m: {k: v for k, v in m.items() if k != name}, name),
            "path out of the directory": (lambda m: {**m, name: "../m0.safetensors"}, "not a plain"),
            "absolute path": (lambda m: {**m, name: "/etc/passwd"}, "not a plain"),
            "file is a number": (lambda m: {**m, name: 3}, name),
            "not JSON": (lambda m: "{", "not valid JSON"),
            "no map": (lambda m: "{}", "weight_map is missing"),
            "map is a list": (lambda m: '{"weight_map": []}', "weight_map"),
            "empty map": (lambda m: {}, "holds no tensor"),
            "name twice": (lambda m: '{"weight_map": {"a": "m0.safetensors", "a": "m1.safetensors"}}', "twice"),
        }
        for lie, (weight_map, message) in lies.items():
            with self.subTest(lie=lie):
                self.refuse_directory(self.sharded(weight_map), message)

    def test_a_tensor_in_two_shards(self):
        directory = self.sharded(lambda honest: honest)
        name = next(iter(self.release.tensors))
        piece = Checkpoint.read(self.directory_with("m1.safetensors", directory))
        piece.tensors[name] = self.release.tensors[name]
        (directory / "m1.safetensors").write_bytes(safetensors(piece.header(), piece.data()))
        self.refuse_directory(directory, name, "m0.safetensors", "m1.safetensors")

    def directory_with(self, shard, source):
        """A directory whose only model file is that shard, for Checkpoint.read."""
        directory = self.directory()
        directory.mkdir()
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_bytes((source / shard).read_bytes())
        return directory

    def test_links_and_other_things_in_place_of_files(self):
        for name in ("config.json", "model.safetensors"):
            for kind in ("cyclic link", "dangling link", "directory", "fifo", "missing", "unreadable"):
                if kind == "unreadable" and os.geteuid() == 0:
                    continue  # root reads everything
                with self.subTest(name=name, kind=kind):
                    directory = self.directory()
                    self.release.write(directory)
                    path = directory / name
                    if kind == "unreadable":
                        path.chmod(0)
                        self.refuse_directory(directory, name)
                        continue
                    path.unlink()
                    if kind == "cyclic link":
                        (directory / "other").symlink_to(name)
                        path.symlink_to("other")
                    elif kind == "dangling link":
                        path.symlink_to("nothing")
                    elif kind == "directory":
                        path.mkdir()
                    elif kind == "fifo":
                        os.mkfifo(path)
                    self.refuse_directory(directory, name)
        self.refuse_directory(Path(self.temporary.name) / "nowhere", "nowhere")

    # --- tensors ---

    def test_missing_extra_and_misshapen_tensors(self):
        name = LAYER + "wkv.weight"
        edited = self.edited()
        del edited.tensors[name]
        self.refuse(edited, "missing", name)
        edited = self.edited()
        edited.tensors["layers.1.attn.surprise"] = Tensor({"dtype": "U8", "shape": [1]}, b"x")
        self.refuse(edited, "extra", "layers.1.attn.surprise")
        edited = self.edited()
        edited.tensors[name].entry["shape"] = list(reversed([1, *edited.tensors[name].entry["shape"]]))
        self.refuse(edited, name, "shape")

    def test_scales_that_are_no_scales(self):
        cases = [(self.release, LAYER + "wkv.scale", b"\xff", LAYER + "wkv"),
                 (self.release, "layers.0.ffn.experts.2.w2.scale", b"\xff", "layers.0.ffn.experts.2.w2")]
        expert = "layers.0.ffn.experts.1.w1"
        cases += [(self.nvfp4, expert + ".weight_scale", byte, expert) for byte in (b"\x7f", b"\xff", b"\x80", b"\xb8")]
        cases += [(self.nvfp4, expert + ".weight_scale_2", struct.pack("<f", value), expert)
                  for value in (float("nan"), float("inf"), -1.0, 0.0)]
        for checkpoint, name, content, message in cases:
            with self.subTest(name=name, content=content):
                edited = self.edited(checkpoint)
                tensor = edited.tensors[name]
                tensor.data = tensor.data[:-len(content)] + content
                self.refuse(edited, message)

    def test_expert_ids_out_of_range(self):
        for bad in (-1, 4, 2**31, 2**63 - 1):
            with self.subTest(id=bad):
                edited = self.edited()
                tensor = edited.tensors["layers.0.ffn.gate.tid2eid"]
                tensor.data = struct.pack("<q", bad) + tensor.data[8:]
                self.refuse(edited, "tid2eid", "expert")

    # --- config ---

    def test_absurd_configs(self):
        absurd = {
            "hidden_size": [0, -1, 2**31, 2**63, 2**64, 1e308, 0.5, "128", [], None],
            "num_hidden_layers": [0, -3, 2**40, None],
            "num_attention_heads": [0, 3, 2**20],
            "head_dim": [0, 1, 127, 2**40],
            "qk_rope_head_dim": [0, 63, 130],
            "o_groups": [0, 3],
            "vocab_size": [0, 2**40],
            "n_routed_experts": [0, 1, 2**40],
            "num_experts_per_tok": [0, 5],
            "moe_intermediate_size": [0, 2**40],
            "compress_ratios": [[], [0], [0, 4], [0, -4, 128], [0, 2**40, 4], "0,4", {}],
            "num_hash_layers": [-1, "one", 2**63],
            "rope_theta": [0, -1, "x"],
            "sliding_window": [0, -1, 2**40],
            "rms_norm_eps": [-1, 2],
            "hc_mult": [0, 17, 2**20],
            "hc_sinkhorn_iters": [0, 2**40],
            "routed_scaling_factor": [0, -1, 1e300],
            "max_position_embeddings": [0, 2**40],
            "index_topk": [0, -1],
            "index_head_dim": [0, 8],
            "eos_token_id": [-1, 96, "x", [1, "y"]],
            "quantization_config": [[], "fp8", {"quant_method": 3}, {"weight_block_size": [0, 128]},
                                    {"weight_block_size": [128]}, {"weight_block_size": [[], {}]}],
            "rope_scaling": [[], {"type": "su"}, {"type": "yarn"}, {"type": "yarn", "factor": -1}],
            "model_type": ["deepseek_v41", "llama", 3],
            "architectures": [["DeepseekV41ForCausalLM"], [1], "DeepseekV4ForCausalLM"],
        }
        for key, values in absurd.items():
            for value in values:
                with self.subTest(key=key, value=value):
                    edited = copy.copy(self.release)
                    edited.config = {**self.release.config, key: value}
                    self.refuse(edited)

    def test_an_architecture_of_the_future_is_refused_by_name(self):
        edited = copy.copy(self.release)
        edited.config = {"model_type": "deepseek_v5", "text_config": {}, "architectures": ["DeepseekV5ForCausalLM"]}
        self.refuse(edited, "deepseek_v5", "deepseek_v4")

    def test_an_empty_text_config_of_the_next_architecture(self):
        edited = copy.copy(self.release)
        edited.config = {"model_type": "deepseek_v41", "text_config": {}, "architectures": ["DeepseekV41ForCausalLM"]}
        self.refuse(edited, "vocab_size", "missing")

    def test_numbers_json_does_not_have(self):
        for number in ("NaN", "Infinity", "-Infinity", "1e999"):
            with self.subTest(number=number):
                edited = copy.copy(self.release)
                text = re.sub(r'"swiglu_limit": [^,]*', f'"swiglu_limit": {number}', json.dumps(self.release.config))
                edited.files = {"config.json": text.encode()}
                self.refuse(edited, "config.json")

    # --- chance ---

    def test_random_damage_never_crashes(self):
        """Bytes of header and config changed at random: accepted (exit 0) or refused (exit 3), nothing else."""
        header = json.dumps(self.release.header()).encode()
        config = json.dumps(self.release.config).encode()
        refused = 0
        for seed in range(60):
            generator = random.Random(seed)
            damaged = {"config.json": bytearray(config), "header": bytearray(header)}
            target = damaged[generator.choice(list(damaged))]
            for _ in range(generator.randint(1, 4)):
                at = generator.randrange(len(target))
                operation = generator.random()
                if operation < 0.5:
                    target[at] = generator.choice(b'0123456789{}[]",:-.eE\x00\xff') if operation < 0.4 else generator.randrange(256)
                elif operation < 0.75:
                    del target[at:at + generator.randint(1, 30)]
                else:
                    target[at:at] = target[at:at + generator.randint(1, 60)]
            edited = copy.copy(self.release)
            edited.files = {"config.json": bytes(damaged["config.json"]),
                            "model.safetensors": safetensors(bytes(damaged["header"]), self.release.data())}
            directory = self.directory()
            edited.write(directory)
            process = dsv4("inspect", "-m", directory)
            self.assertIn(process.returncode, (0, 3), f"seed {seed}: {process.stderr}")
            refused += process.returncode == 3
        self.assertGreater(refused, 20)


if __name__ == "__main__":
    unittest.main()
