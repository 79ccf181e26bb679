"""`dsv4 diagnose checkpoint` on files: damaged copies of the small model are named for what they are, healthy ones pass."""

import json
import pathlib
import shutil
import tempfile
import unittest

import weight_faults
from dsv4_process import TINY, dsv4, dsv4_json
from safetensors_copy import Copy

NUM_LAYERS, NUM_EXPERTS = 7, 16
TINY_V41 = TINY.parent / "tiny-v41"
SYNTHETIC = ("bf16", "f32", "fp8", "fp8-base", "release", "nvfp4-experts", "nvfp4", "nvfp4-ct")


def check(*arguments):
    """Exit code and report."""
    process = dsv4("diagnose", "checkpoint", *arguments)
    if process.returncode not in (0, 1):
        raise AssertionError(f"exit code {process.returncode}: {process.stderr}")
    return process.returncode, process.stdout


class WithDirectory(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)

    def expect_healthy(self, *arguments):
        code, text = check(*arguments)
        self.assertEqual(code, 0, text)
        return text


class Healthy(WithDirectory):
    def test_the_small_model_has_gate_and_up_in_order(self):
        text = self.expect_healthy()
        self.assertIn("14 groups of experts: 13 in order, 0 swapped, 1 say nothing", text)

    def test_what_convert_writes_has_no_finding(self):
        for experts, dense, scales in (("nvfp4", "nvfp4", "mse"), ("nvfp4", "fp8", "amax"), ("mxfp4", "fp8", "mse"),
                                       ("mxfp4", "nvfp4", "amax"), ("fp8", "nvfp4", "mse"), ("bf16", "bf16", "mse")):
            with self.subTest(experts=experts, dense=dense, scales=scales):
                destination = self.directory / f"{experts}-{dense}-{scales}"
                dsv4_json("convert", TINY, destination, "--experts", experts, "--dense", dense, "--scales", scales, "--json")
                self.assertIn("13 in order, 0 swapped", self.expect_healthy("-m", destination))
                shutil.rmtree(destination)

    def test_random_weights_of_every_format_have_no_finding(self):
        for form in SYNTHETIC:
            with self.subTest(format=form):
                text = self.expect_healthy("--weights", f"synthetic:tiny,{form},seed=3", "--max-layers", "3")
                self.assertIn("6 groups of experts: 0 in order, 0 swapped, 6 say nothing", text)
        for seed in range(6):  # They repeat each other's numbers, so that layers may be alike, or all but one.
            with self.subTest(seed=seed):
                directory = self.directory / str(seed)
                self.assertEqual(dsv4("synth", directory, "--shape", "mini41", "--layers", 4 + 2 * (seed % 2), "--seed", seed).returncode, 0)
                self.expect_healthy("-m", directory)
                shutil.rmtree(directory)


class Damaged(WithDirectory):
    def expect_finding(self, damage, *wanted, source=TINY):
        copy = Copy(source, self.directory / "copy")
        damage(copy)
        code, text = check("-m", copy.save())
        shutil.rmtree(copy.directory)
        self.assertEqual(code, 1, text)
        for part in wanted:
            self.assertIn(part, text)

    def expect_pass(self, damage, *wanted):
        copy = Copy(TINY, self.directory / "copy")
        damage(copy)
        text = self.expect_healthy("-m", copy.save())
        shutil.rmtree(copy.directory)
        for part in wanted:
            self.assertIn(part, text)

    def test_gate_and_up_swapped(self):
        def swap(copy, layer, module):
            copy.swap(f"layers.{layer}.ffn.{module}.w1", f"layers.{layer}.ffn.{module}.w3")

        def swap_all(copy):
            for layer in range(NUM_LAYERS):
                for module in ["shared_experts"] + [f"experts.{i}" for i in range(NUM_EXPERTS)]:
                    swap(copy, layer, module)

        def swap_layer(copy):
            for i in range(NUM_EXPERTS):
                swap(copy, 3, f"experts.{i}")

        self.expect_finding(swap_all, "14 groups of experts: 0 in order, 13 swapped, 1 say nothing", "layers.6.ffn.shared_experts:")
        self.expect_finding(swap_layer, "checkpoint: finding: layers.3.ffn.experts: the rows of up (w3) share a direction")
        self.expect_finding(lambda copy: swap(copy, 2, "shared_experts"), "checkpoint: finding: layers.2.ffn.shared_experts: ")
        self.expect_finding(lambda copy: swap(copy, 6, "experts.3"),
                            "checkpoint: finding: layers.6.ffn.experts.3: the rows of up (w3) go along with the gates")

    def test_a_layer_that_does_not_go_with_the_others(self):
        def doubled(copy):
            for i in range(NUM_EXPERTS):
                for linear in ("w1", "w2", "w3"):
                    weight_faults.floats(copy, f"layers.2.ffn.experts.{i}.{linear}.weight_scale_2", lambda x: 2 * x)

        self.expect_finding(doubled, "checkpoint: finding: layers.2.ffn.experts.w1 is 2", "times as large as in the layers beside it")
        self.expect_finding(lambda copy: weight_faults.times_e8m0(copy, "layers.0.attn.wo_a.scale", 1), "layers.0.attn.wo_a is ")
        self.expect_finding(lambda copy: weight_faults.transpose(copy, "layers.2.attn.wo_b.weight"),
                            "checkpoint: finding: layers.2.attn.wo_b has its large rows where no other layer has them")
        self.expect_finding(lambda copy: weight_faults.bf16(copy, "layers.4.attn_norm.weight", lambda x: x / 4),
                            "layers.4.attn_norm is 4", "times as small")
        self.expect_finding(lambda copy: weight_faults.bf16(copy, "layers.1.attn.q_norm.weight", lambda x: 1.0), "layers.1.attn.q_norm is constant")
        self.expect_finding(lambda copy: weight_faults.floats(copy, "layers.4.ffn.gate.bias", lambda x: -x), "layers.4.ffn.gate.bias has the other sign")

        self.expect_finding(lambda copy: weight_faults.floats(copy, "layers.2.ffn.gate.bias", lambda x: 30 * x),
                            "layers.2.ffn.gate.bias has numbers that lie", source=TINY_V41)

        def halves(copy):
            weight_faults.rows(copy, "layers.6.attn.wkv.weight", lambda i, n: i if i < 64 else 64 + (i + 32) % 64)

        self.expect_finding(halves, "layers.6.attn.wkv has its large rows where no other layer has them")

    def test_scales_of_a_row_of_blocks(self):
        row, column = weight_faults.times_e8m0_row, weight_faults.times_e8m0_column
        self.expect_finding(lambda copy: row(copy, "layers.3.attn.wq_b.scale", 3, 3), "layers.3.attn.wq_b has rows 384..511 that are 6.9 times as large")
        for power, words in ((2, "times as large"), (-3, "times as small")):
            self.expect_finding(lambda copy, power=power: row(copy, "layers.3.attn.wo_b.scale", 3, power), "layers.3.attn.wo_b has rows 96..127 that are",
                                words, source=TINY_V41)
            self.expect_finding(lambda copy, power=power: column(copy, "layers.2.attn.wkv.scale", 1, power),
                                "layers.2.attn.wkv has columns 32..63 that are", words, source=TINY_V41)

    def test_one_number_that_is_not_the_familys(self):
        def configured(**values):
            def damage(copy):
                path = copy.directory / "config.json"
                path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
            return damage

        self.expect_finding(configured(rope_theta=1000000), "config.json, rope_theta: 1000000; with all its other numbers")
        self.expect_finding(configured(sliding_window=16), "config.json, sliding_window: 16;")
        self.expect_finding(configured(index_topk=4), "config.json, index_topk: 4; models of this family choose 32 and more")
        self.expect_finding(configured(routed_scaling_factor=1.0), "config.json, routed_scaling_factor: 1; with all its other numbers models of this "
                                                                   "family have 1.5 or 2.5")
        self.expect_pass(configured(rope_theta=20000, compress_rope_theta=80000, sliding_window=64))  # Another recipe.

    def test_tensors_that_are_tied_to_others(self):
        exchange_layers = weight_faults.exchange_layers
        for model in (TINY, TINY_V41):
            with self.subTest(model=model.name):
                self.expect_finding(lambda copy: exchange_layers(copy, 3, 5, r"attn\.wq_b\..*"),
                                    "layers.3.attn.wq_b is tied to layer 5's attn.wq_a", "layers.5.attn.wq_b is tied to layer 3's", source=model)
                self.expect_finding(lambda copy: exchange_layers(copy, 2, 4, r"attn\.wo_a\..*"), "layers.2.attn.wo_b is ", "attn.wo_a", source=model)
                self.expect_finding(lambda copy: copy.swap("layers.4.ffn.experts.2.w2", "layers.4.ffn.experts.5.w2"), "layers.4.ffn.experts.2.w2 and "
                                    "layers.4.ffn.experts.5.w2 are tied to each other's w1 and w3, and not to their own: they are exchanged", source=model)

        def streams(copy):
            for part, block in (("weight", 256), ("scale", 8)):
                weight_faults.rows(copy, f"layers.1.engram.wkv.{part}", lambda i, n, block=block: i + block if i < block else i - block if i < 2 * block else i)

        self.expect_finding(streams, "layers.1.engram.wkv (stream 0) and layers.1.engram.wkv (stream 1) are tied to each other's k_weight", source=TINY_V41)
        self.expect_finding(lambda copy: exchange_layers(copy, 2, 4, r"attn\.compressor\.wkv\..*"),
                            "layers.2.attn.compressor.wkv and layers.4.attn.compressor.wkv are tied to each other's attn_norm", source=TINY_V41)

    def test_values_that_are_no_numbers_and_copies(self):
        def written(name, offset, data):
            return lambda copy: copy.bytes(name).__setitem__(slice(offset, offset + len(data)), data)

        for name, offset, data, place in (("embed.weight", 2 * (3001 * 256 + 5), b"\xc0\x7f", "row 3001, column 5"),
                                          ("layers.3.engram.embed.weight", 32 * 5000 + 7, b"\x7f", "row 5000, column 7"),
                                          ("layers.1.engram.embed.scale", 700, b"\xff", "row 700, column 0"),
                                          ("layers.4.attn.indexer.wk.weight", 2 * 128, b"\x80\xff", "row 1, column 0")):
            with self.subTest(name=name):
                self.expect_finding(written(name, offset, data), f"{name} holds NaN or infinity, first in {place}", source=TINY_V41)

        def table_of_the_other_layer(copy):
            for part in ("weight", "scale"):
                data = copy.bytes(f"layers.1.engram.embed.{part}")
                copy.bytes(f"layers.3.engram.embed.{part}")[:len(data)] = data

        self.expect_finding(table_of_the_other_layer, "layers.3.engram.embed.weight has the bytes of layers.1.engram.embed.weight", source=TINY_V41)
        name = "layers.{}.ffn.experts.1.w1.weight"
        self.expect_finding(lambda copy: copy.bytes(name.format(5)).__setitem__(slice(None), bytes(copy.bytes(name.format(2)))),
                            f"{name.format(5)} has the bytes of {name.format(2)}")

    def test_numbers_and_signs_of_v41(self):
        def configured(**values):
            def damage(copy):
                path = copy.directory / "config.json"
                config = json.loads(path.read_text())
                config["text_config"].update(values)
                path.write_text(json.dumps(config))
            return damage

        for key, value in (("engram_pad_token_id", 0), ("candidate_topk_blocks", 4)):
            self.expect_finding(configured(**{key: value}), f"config.json, {key}: {value}", source=TINY_V41)
        flips = iter(range(10**6))
        self.expect_finding(lambda copy: weight_faults.bf16(copy, "layers.4.attn.indexer.k_norm.weight", lambda x: -x if next(flips) % 2 else x),
                            "layers.4.attn.indexer.k_norm has 50 % negative numbers", source=TINY_V41)

    @staticmethod
    def calibrate(copy):
        """Plausible input scales: all of a layer alike for w1 and w3, anything for w2."""
        for layer in range(NUM_LAYERS):
            for i in range(NUM_EXPERTS):
                for linear, value in (("w1", 0.002 * (1 + i % 5)), ("w2", 0.0001 * 3 ** (i % 8)), ("w3", 0.002 * (1 + i % 5))):
                    copy.set_float(f"layers.{layer}.ffn.experts.{i}.{linear}.input_scale", value)

    def test_input_scales(self):
        scale = "layers.4.ffn.experts.9.w1.input_scale"
        self.expect_pass(self.calibrate, "336 input scales, 0 of them exactly 1")

        def calibrated_but(name, value):
            def damage(copy):
                self.calibrate(copy)
                copy.set_float(name, value)
            return damage

        for value, wanted in ((1.0, "layers.4.ffn.experts.w1: input_scale of expert 9 is exactly 1, its siblings' are around 0.006: "
                                    "never calibrated"),
                              (0.0, f"{scale} is 0, wanted a positive number"), (-0.002, f"{scale} is -0.002, wanted"),
                              (float("nan"), f"{scale} is nan, wanted"), (float("inf"), f"{scale} is inf, wanted"),
                              (977.0, f"{scale} is 977: activations of up to 2.63e+06, which no layer has"),
                              (1e-10, f"{scale} is 1e-10: activations of up to"),
                              (0.9, "input_scale of expert 9 is more than 64 times off the median 0.006")):
            self.expect_finding(calibrated_but(scale, value), wanted)
        self.expect_pass(calibrated_but("layers.4.ffn.experts.9.w2.input_scale", 0.9))

        def synchronise(copy):
            self.calibrate(copy)
            for i in range(NUM_EXPERTS):
                for linear in ("w1", "w3"):
                    copy.set_float(f"layers.5.ffn.experts.{i}.{linear}.input_scale", 0.003)

        self.expect_pass(synchronise, "all experts share one input scale in 1 layer")
        self.expect_pass(calibrated_but("layers.4.ffn.experts.9.w1.input_scale", 0.003), "w1 and w3 of 1 expert")

    def test_block_scales(self):
        def zero(copy):
            scales = copy.bytes("layers.1.ffn.experts.5.w2.weight_scale")
            scales[:len(scales) * 2 // 3] = bytes(len(scales) * 2 // 3)

        def cut_off(copy):  # As a quantiser with too small a global scale would: large blocks at 448, elements at +-6.
            name = "layers.1.ffn.experts.5.w2.weight"
            scales, codes = copy.bytes(name + "_scale"), copy.bytes(name)
            scales[:] = bytes([0x7E]) * len(scales)
            codes[:] = bytes(code | 0x77 if i % 3 else code for i, code in enumerate(codes))

        def subnormal(copy):
            scales = copy.bytes("layers.1.ffn.experts.5.w2.weight_scale")
            scales[:] = bytes(1 + code % 7 for code in scales)
            copy.set_float("layers.1.ffn.experts.5.w2.weight_scale_2", 2.0)

        place = "layers.1.ffn.experts.5.w2 "
        self.expect_finding(zero, place + "has a scale of zero in 1365 of 2048 blocks")
        self.expect_finding(cut_off, place + "has the largest possible scale, 448, in 2048 of 2048 blocks")
        self.expect_finding(subnormal, place + "has subnormal scales in 2048 of 2048 blocks")

    def test_layers_and_halves_that_changed_places(self):
        exchange, exchange_layers = weight_faults.exchange, weight_faults.exchange_layers
        for model in (TINY, TINY_V41):
            for name, text in (("attn_norm", "attn.wq_a and attn.wkv"), ("ffn_norm", "experts"), ("attn.q_norm", "attn.wq_a and attn.wq_b")):
                with self.subTest(model=model.name, name=name):
                    self.expect_finding(lambda copy, name=name: exchange_layers(copy, 2, 4, name.replace(".", r"\.") + r"\.weight"),
                                        f"layers.2.{name} and layers.4.{name} go along with each other's {text}", source=model)
            self.expect_finding(lambda copy: exchange(copy, "layers.4.attn_norm.weight", "layers.4.ffn_norm.weight"),
                                "checkpoint: finding: layers.4.attn_norm is", "times as far from all other layers' as from their ffn_norm", source=model)
            self.expect_finding(lambda copy: exchange_layers(copy, 2, 5, "hc_attn_fn"), "layers.2.hc_attn_fn and layers.5.hc_attn_fn are more like", source=model)
            self.expect_finding(lambda copy: exchange(copy, "layers.2.attn.compressor.wkv.weight", "layers.2.attn.compressor.wgate.weight"),
                                "checkpoint: finding: layers.2.attn.compressor the rows of wkv share a direction", source=model)

    def test_experts_out_of_order(self):
        def nibbles(copy):
            for expert in weight_faults.experts(copy, [3], range(8)):
                weight_faults.each_byte(copy, expert + "w2.weight", lambda b: b >> 4 | b << 4 & 255)

        self.expect_finding(nibbles, "checkpoint: finding: layers.3.ffn.experts w2 has columns in another order", source=TINY_V41)

    def test_scales_of_single_blocks(self):
        def block(copy):
            copy.bytes("layers.3.attn.wo_b.scale")[3 * 8 + 5] += 1

        column = weight_faults.times_e8m0_column
        self.expect_finding(lambda copy: column(copy, "layers.3.attn.wq_a.scale", 1, 1), "layers.3.attn.wq_a has columns ")
        self.expect_finding(block, "layers.3.attn.wo_b has a block (scale 29) that is", source=TINY_V41)

    def test_one_number_far_out_and_copied_vectors(self):
        def lone(copy):
            weight_faults.write(copy, "layers.3.attn.attn_sink", "f", [900.0, *weight_faults.numbers(copy, "layers.3.attn.attn_sink", "f")[1:]])

        def flipped(copy):
            copy.bytes("head.weight")[2 * (256 * 77 + 3) + 1] ^= 0x40  # The highest bit of the exponent.

        def small(copy):
            copy.bytes("layers.4.attn_norm.weight")[2 * 9 + 1] ^= 0x20

        def copied(copy):
            copy.bytes("layers.5.attn.attn_sink")[:] = bytes(copy.bytes("layers.2.attn.attn_sink"))

        for model in (TINY, TINY_V41):
            self.expect_finding(lone, "checkpoint: finding: layers.3.attn.attn_sink holds 900 in row 0, column 0", source=model)
            self.expect_finding(flipped, "head.weight holds ", "in row 77, column 3", source=model)
            self.expect_finding(small, "layers.4.attn_norm.weight holds ", "in column 9, where the next least is", source=model)
            self.expect_finding(copied, "layers.5.attn.attn_sink has the bytes of layers.2.attn.attn_sink", source=model)

    def test_parts_that_were_never_written(self):
        def zero(name, begin, end):
            def damage(copy):
                data = copy.bytes(name)
                first, last = int(len(data) * begin), int(len(data) * end)
                data[first:last] = bytes(last - first)
            return damage

        def hole(size):
            def damage(copy):  # Of the file's pages, wherever they lie.
                begin = len(copy.body) // 2 // 4096 * 4096
                copy.body[begin:begin + size] = bytes(size)
            return damage

        expert = "layers.2.ffn.experts.7.w2.weight"
        for name, begin, end in (("head.weight", 0.1, 1), ("embed.weight", 0.5, 1), ("embed.weight", 1000 / 5120, 1001 / 5120),
                                 ("layers.3.attn.wq_b.weight", 0, 0.5), ("layers.3.attn.wo_a.weight", 0.9, 1), (expert, 0.5, 1),
                                 (expert + "_scale", 0, 0.5), ("layers.4.attn_norm.weight", 0.5, 1), ("layers.5.hc_attn_fn", 0.5, 1)):
            with self.subTest(name=name, begin=begin):
                self.expect_finding(zero(name, begin, end), f"checkpoint: finding: {name} ", "in long runs of zeros")
        for size in (4096, 16384):
            self.expect_finding(hole(size), "in long runs of zeros")
        table = "layers.0.ffn.gate.tid2eid"
        self.expect_finding(zero(table, 0, 1), f"checkpoint: finding: {table} sends all 5120 token ids to the same experts")
        self.expect_finding(zero(table, 0.5, 1), f"{table} names an expert twice for 2560 of 5120 token ids, the first is 2560")
        self.expect_finding(zero("layers.4.ffn.gate.bias", 0, 1), "layers.4.ffn.gate.bias is all zero")
        # Behind the last token an embedding may have rows that nobody uses.
        self.expect_pass(zero("embed.weight", 0.99, 1))

    def test_small_tensors_of_any_name(self):
        every = ["layers.3.attn.attn_sink", "layers.2.hc_attn_base", "layers.5.hc_ffn_scale", "layers.4.hc_attn_fn", "layers.6.attn.kv_norm.weight"]
        models = {TINY: ["hc_head_fn", "hc_head_base", "hc_head_scale", "layers.3.attn.compressor.ape"],
                  TINY_V41: ["layers.1.engram.q_weight", "layers.4.attn.indexer.k_norm.weight", "layers.2.attn.compressor.norm.weight"]}
        for model, own in models.items():
            self.expect_healthy("-m", model)
            for name in every + own:
                with self.subTest(model=model.name, name=name):
                    self.expect_finding(lambda copy, name=name: weight_faults.zero(copy, name), f"{name.removesuffix('.weight')} is all zero", source=model)
            for change, text in ((lambda x: -x, "hc_ffn_base has its large numbers where no other layer has them"), (lambda x: 8 * x, "hc_ffn_base is")):
                self.expect_finding(lambda copy, change=change: weight_faults.floats(copy, "layers.3.hc_ffn_base", change), text, source=model)
            self.expect_finding(lambda copy: weight_faults.floats(copy, "layers.4.hc_attn_scale", lambda x: -x), "layers.4.hc_attn_scale has the other sign",
                                source=model)

    def test_the_highest_bit_of_an_exponent_flipped(self):
        source = self.directory / "mxfp4"
        dsv4_json("convert", TINY, source, "--experts", "mxfp4", "--json")
        files = list(source.glob("*.safetensors"))
        self.assertEqual(len(files), 1)
        files[0].rename(source / "model.safetensors")
        index = source / "model.safetensors.index.json"
        index.unlink(missing_ok=True)

        def flip(copy):
            copy.bytes("layers.1.ffn.experts.5.w2.scale")[-1] ^= 0x80  # In the last row, which the sample of rows leaves out.

        self.expect_finding(flip, "layers.1.ffn.experts.5.w2 has a block scale of", "times the median one: damaged?", source=source)


if __name__ == "__main__":
    unittest.main()
