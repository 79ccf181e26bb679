"""Seventy-six ways in which a checkpoint is wrong, done to copies of the small model: what converters, loaders, downloads and copies by
hand get wrong. `FAULTS` maps a name to a function that damages a `Copy` or its configuration."""

import json
import re
import struct

NUM_LAYERS, NUM_EXPERTS, HASH_LAYERS, CSA, HCA = 7, 16, (0, 1), (2, 4, 6), (3, 5)


def registry(section=()):
    """A map of faults, and what adds one to it: a function, or values of config.json below `section`."""
    faults = {}

    def fault(name):
        def add(function):
            assert name not in faults, name
            faults[name] = function
            return function
        return add

    def configured(name, **values):
        @fault(name)
        def change(copy):
            path = copy.directory / "config.json"
            config = json.loads(path.read_text())
            place = config
            for key in section:
                place = place[key]
            for key, value in values.items():
                if isinstance(value, dict):
                    place[key].update(value)
                else:
                    place[key] = value
            path.write_text(json.dumps(config, indent=2))

    return faults, fault, configured


FAULTS, fault, configured = registry()


# --- helpers ---

def numbers(copy, name, code):
    data = copy.bytes(name)
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))


def write(copy, name, code, values):
    copy.bytes(name)[:] = struct.pack(f"<{len(values)}{code}", *values)


def floats(copy, name, change):
    """The tensor's F32 numbers, changed one by one."""
    write(copy, name, "f", [change(x) for x in numbers(copy, name, "f")])


def bf16(copy, name, change):
    values = [struct.unpack("<f", struct.pack("<HH", 0, x))[0] for x in numbers(copy, name, "H")]
    write(copy, name, "H", [struct.unpack("<HH", struct.pack("<f", change(x)))[1] for x in values])


def each_byte(copy, name, change):
    data = copy.bytes(name)
    data[:] = bytes(data).translate(bytes(change(b) for b in range(256)))


def rows(copy, name, order):
    """Rows of the tensor in another order: row i becomes what row order(i, n) was."""
    data = copy.bytes(name)
    count = copy.header[name]["shape"][0]
    width = len(data) // count
    old = bytes(data)
    data[:] = b"".join(old[(j := order(i, count)) * width:(j + 1) * width] for i in range(count))


def exchange(copy, first, second):
    copy.header[first], copy.header[second] = copy.header[second], copy.header[first]


def exchange_layers(copy, first, second, pattern):
    """Exchanges the tensors of two layers whose rest of the name matches."""
    prefix = f"layers.{first}."
    names = [name for name in copy.header if name.startswith(prefix) and re.fullmatch(pattern, name.removeprefix(prefix))]
    assert names, pattern
    for name in names:
        exchange(copy, name, f"layers.{second}." + name.removeprefix(prefix))


def zero(copy, name, begin=0.0, end=1.0):
    data = copy.bytes(name)
    first, last = int(len(data) * begin), int(len(data) * end)
    data[first:last] = bytes(last - first)


def transpose(copy, name):
    """A square matrix of bytes."""
    data = copy.bytes(name)
    count, width = copy.header[name]["shape"]
    assert count == width
    old = bytes(data)
    data[:] = b"".join(old[i::width] for i in range(width))


def experts(copy, layers=range(NUM_LAYERS), which=range(NUM_EXPERTS)):
    for layer in layers:
        for expert in which:
            yield f"layers.{layer}.ffn.experts.{expert}."


def rotate_experts(copy, layer):
    parts = [name.removeprefix(f"layers.{layer}.ffn.experts.0.") for name in copy.header if name.startswith(f"layers.{layer}.ffn.experts.0.")]
    for part in parts:
        names = [f"layers.{layer}.ffn.experts.{e}.{part}" for e in range(NUM_EXPERTS)]
        entries = [copy.header[name] for name in names]
        for name, entry in zip(names, entries[1:] + entries[:1]):
            copy.header[name] = entry


def negate_fp8(copy, name):
    each_byte(copy, name, lambda b: b ^ 0x80)


def times_e8m0(copy, name, power):
    each_byte(copy, name, lambda b: max(0, min(254, b + power)))


def times_e8m0_row(copy, name, row, power):
    """The scales of one row of blocks."""
    data = copy.bytes(name)
    width = copy.header[name]["shape"][1]
    data[row * width:(row + 1) * width] = bytes(b + power for b in data[row * width:(row + 1) * width])


def times_e8m0_column(copy, name, column, power):
    data = copy.bytes(name)
    width = copy.header[name]["shape"][1]
    data[column::width] = bytes(b + power for b in data[column::width])


# --- the configuration ---

configured("swiglu_limit 2", swiglu_limit=2.0)
configured("rms_norm_eps of another model", rms_norm_eps=0.01)
configured("rope_theta of another model", rope_theta=1000000)
configured("route scale of another model", routed_scaling_factor=2.5)
configured("window of another model", sliding_window=16)
configured("one Sinkhorn pass", hc_sinkhorn_iters=1)
configured("hc_eps of another model", hc_eps=0.1)
configured("two experts a token in place of four", num_experts_per_tok=2)
configured("four entries for the indexer", index_topk=4)
configured("compressed theta of the window", compress_rope_theta=10000)
configured("a hash layer fewer", num_hash_layers=1)
configured("CSA and HCA exchanged", compress_ratios=[0, 0, 128, 4, 128, 4, 128, 0])


# --- embedding, head, final norm ---

@fault("embedding and head exchanged")
def _(copy):
    exchange(copy, "embed.weight", "head.weight")


@fault("embedding one row off")
def _(copy):
    rows(copy, "embed.weight", lambda i, n: (i + 1) % n)


@fault("head one row off")
def _(copy):
    rows(copy, "head.weight", lambda i, n: (i + 1) % n)


@fault("embedding, a row of zeros")
def _(copy):
    data = copy.bytes("embed.weight")
    data[512 * 300:512 * 301] = bytes(512)


@fault("embedding, half of it zeros")
def _(copy):
    zero(copy, "embed.weight", 0.5)


@fault("embedding times 16")
def _(copy):
    bf16(copy, "embed.weight", lambda x: x * 16)


@fault("head, nine tenths of it zeros")
def _(copy):
    zero(copy, "head.weight", 0.1)


@fault("head, an infinite number")
def _(copy):
    copy.bytes("head.weight")[:2] = b"\x80\x7f"


@fault("final norm left at one")
def _(copy):
    bf16(copy, "norm.weight", lambda x: 1.0)


@fault("final norm negated")
def _(copy):
    bf16(copy, "norm.weight", lambda x: -x)


# --- attention ---

@fault("attention of two layers exchanged")
def _(copy):
    exchange_layers(copy, 2, 4, r"attn\..*")


@fault("layers shifted by two")
def _(copy):
    exchange_layers(copy, 2, 4, r".*")
    exchange_layers(copy, 4, 6, r".*")


@fault("wq_a of two layers exchanged")
def _(copy):
    exchange_layers(copy, 1, 3, r"attn\.wq_a\..*")


@fault("wo_b transposed")
def _(copy):
    transpose(copy, "layers.3.attn.wo_b.weight")


@fault("wo_b negated")
def _(copy):
    negate_fp8(copy, "layers.4.attn.wo_b.weight")


@fault("groups of wo_a exchanged")
def _(copy):
    for part in ("weight", "scale"):
        rows(copy, f"layers.1.attn.wo_a.{part}", lambda i, n: (i + n // 2) % n)


@fault("heads of wq_b in reverse order")
def _(copy):
    rows(copy, "layers.2.attn.wq_b.weight", lambda i, n: (n // 128 - 1 - i // 128) * 128 + i % 128)


@fault("wq_b, half of it zeros")
def _(copy):
    zero(copy, "layers.2.attn.wq_b.weight", 0.5)


@fault("one block scale of wkv times 8")
def _(copy):
    data = copy.bytes("layers.2.attn.wkv.scale")
    data[0] += 3


@fault("block scales of wo_b times 8")
def _(copy):
    times_e8m0(copy, "layers.5.attn.wo_b.scale", 3)


@fault("scales of a row of blocks of wq_b times 8")
def _(copy):
    times_e8m0_row(copy, "layers.3.attn.wq_b.scale", 3, 3)


@fault("rotary halves interleaved in wq_b")
def _(copy):
    def order(i, n):
        head, row = divmod(i, 128)
        if row < 64:
            return i
        half = row - 64
        return head * 128 + 64 + (half // 2 + 32 * (half % 2))
    for layer in range(NUM_LAYERS):
        rows(copy, f"layers.{layer}.attn.wq_b.weight", order)


@fault("rotary part of wkv in front")
def _(copy):
    for layer in range(NUM_LAYERS):
        rows(copy, f"layers.{layer}.attn.wkv.weight", lambda i, n: (i + 64) % n)


@fault("sinks that take all attention")
def _(copy):
    for layer in range(NUM_LAYERS):
        floats(copy, f"layers.{layer}.attn.attn_sink", lambda x: x + 20)


@fault("sinks of another layer")
def _(copy):
    exchange_layers(copy, 3, 5, r"attn\.attn_sink")


@fault("key norm left at one")
def _(copy):
    bf16(copy, "layers.2.attn.kv_norm.weight", lambda x: 1.0)


@fault("input norms of two layers exchanged")
def _(copy):
    exchange_layers(copy, 1, 5, r"attn_norm\.weight")


@fault("FP8 of another kind in wq_a")
def _(copy):
    # e5m2's bits in a file that says e4m3.
    def e5m2(b):
        sign, exponent, mantissa = b >> 7, b >> 3 & 15, b & 7
        return sign << 7 | min(31, exponent + 8) << 2 | mantissa >> 1 if exponent else sign << 7
    for layer in range(NUM_LAYERS):
        each_byte(copy, f"layers.{layer}.attn.wq_a.weight", lambda b: 0x7E if (c := e5m2(b)) in (0x7F, 0xFF) else c)


# --- compressors and indexer ---

@fault("rows of a compressor's ape exchanged")
def _(copy):
    rows(copy, "layers.3.attn.compressor.ape", lambda i, n: n - 1 - i)


@fault("ape shifted by one position")
def _(copy):
    rows(copy, "layers.2.attn.compressor.ape", lambda i, n: (i + 1) % n)


@fault("wkv and wgate of a compressor exchanged")
def _(copy):
    exchange(copy, "layers.3.attn.compressor.wkv.weight", "layers.3.attn.compressor.wgate.weight")


for _part, _words in ((r"compressor\.wkv\.weight", "index keys' wkv"), (r"wq_b\..*", "indexer's wq_b"), (r"weights_proj\.weight", "indexer's weights_proj"),
                      (r".*", "whole indexer")):
    fault(_words + " of another layer")(lambda copy, part=_part: exchange_layers(copy, 2, 4, r"attn\.indexer\." + part))


@fault("index keys' wkv negated")
def _(copy):
    bf16(copy, "layers.4.attn.indexer.compressor.wkv.weight", lambda x: -x)


@fault("indexer's wq_b negated")
def _(copy):
    negate_fp8(copy, "layers.4.attn.indexer.wq_b.weight")


@fault("wkv and wgate of index keys exchanged")
def _(copy):
    exchange(copy, "layers.4.attn.indexer.compressor.wkv.weight", "layers.4.attn.indexer.compressor.wgate.weight")


@fault("indexer's weights_proj, all zeros")
def _(copy):
    zero(copy, "layers.2.attn.indexer.weights_proj.weight")


# --- hyper-connections ---

@fault("signs of hc_attn_fn")
def _(copy):
    for layer in range(NUM_LAYERS):
        floats(copy, f"layers.{layer}.hc_attn_fn", lambda x: -x)


@fault("comb transposed")
def _(copy):
    for layer in range(NUM_LAYERS):
        for part in ("attn", "ffn"):
            order = [*range(8), *(8 + 4 * (i % 4) + i // 4 for i in range(16))]
            for name in (f"layers.{layer}.hc_{part}_fn", f"layers.{layer}.hc_{part}_base"):
                rows(copy, name, lambda i, n, order=order: order[i])


@fault("pre and post of the streams exchanged")
def _(copy):
    for layer in range(NUM_LAYERS):
        order = [4, 5, 6, 7, 0, 1, 2, 3, *range(8, 24)]
        for name in (f"layers.{layer}.hc_ffn_fn", f"layers.{layer}.hc_ffn_base"):
            rows(copy, name, lambda i, n, order=order: order[i])


@fault("hc_attn_fn, half of it zeros")
def _(copy):
    zero(copy, "layers.4.hc_attn_fn", 0.5)


@fault("streams mixed evenly in front of the head")
def _(copy):
    for part in ("fn", "base"):
        floats(copy, f"hc_head_{part}", lambda x: 0.0)


# --- experts and router ---

@fault("gate and up exchanged in every layer")
def _(copy):
    for expert in experts(copy):
        copy.swap(expert + "w1", expert + "w3")


@fault("gate and up exchanged in one layer")
def _(copy):
    for expert in experts(copy, [2]):
        copy.swap(expert + "w1", expert + "w3")


@fault("nibbles exchanged in w2 of a layer")
def _(copy):
    for expert in experts(copy, [1]):
        each_byte(copy, expert + "w2.weight", lambda b: b >> 4 | b << 4 & 255)


@fault("weight_scale_2 lost in a layer")
def _(copy):
    for expert in experts(copy, [3]):
        copy.set_float(expert + "w1.weight_scale_2", 1.0)


@fault("weight_scale_2 for its inverse")
def _(copy):
    for expert in experts(copy, [1], [7]):
        floats(copy, expert + "w2.weight_scale_2", lambda x: 1 / x)


@fault("weight_scale_2 times 2 everywhere")
def _(copy):
    for expert in experts(copy):
        for part in ("w1", "w2", "w3"):
            floats(copy, f"{expert}{part}.weight_scale_2", lambda x: 2 * x)


@fault("weight_scale_2 cut to bf16")
def _(copy):
    for expert in experts(copy):
        for part in ("w1", "w2", "w3"):
            floats(copy, f"{expert}{part}.weight_scale_2", lambda x: struct.unpack("<f", b"\0\0" + struct.pack("<f", x)[2:])[0])


@fault("block scales walked column by column")
def _(copy):
    for expert in experts(copy, [0, 1, 2]):
        data = copy.bytes(expert + "w1.weight_scale")
        count, width = copy.header[expert + "w1.weight_scale"]["shape"]
        old = bytes(data)
        data[:] = bytes(old[i % count * width + i // count] for i in range(len(old)))


@fault("an expert's block scales, half of them zeros")
def _(copy):
    zero(copy, "layers.4.ffn.experts.3.w1.weight_scale", 0.5)


@fault("experts one off in a layer")
def _(copy):
    rotate_experts(copy, 3)


@fault("shared experts of two layers exchanged")
def _(copy):
    exchange_layers(copy, 3, 6, r"ffn\.shared_experts\..*")


@fault("w2 of a shared expert negated")
def _(copy):
    negate_fp8(copy, "layers.2.ffn.shared_experts.w2.weight")


@fault("rows of a router reversed")
def _(copy):
    rows(copy, "layers.4.ffn.gate.weight", lambda i, n: n - 1 - i)


@fault("router's bias lost")
def _(copy):
    zero(copy, "layers.2.ffn.gate.bias")


@fault("hash table one row off")
def _(copy):
    rows(copy, "layers.0.ffn.gate.tid2eid", lambda i, n: (i + 1) % n)


@fault("hash table, one wrong row")
def _(copy):
    data = copy.bytes("layers.0.ffn.gate.tid2eid")
    data[32 * 300:32 * 301] = bytes(data[32 * 301:32 * 302])


@fault("hash table, all zeros")
def _(copy):
    zero(copy, "layers.1.ffn.gate.tid2eid")


# --- what a loader must refuse ---

@fault("an expert id that no expert has")
def _(copy):
    copy.bytes("layers.0.ffn.gate.tid2eid")[:8] = struct.pack("<q", NUM_EXPERTS)


@fault("a block scale that is NaN")
def _(copy):
    copy.bytes("layers.1.attn.wkv.scale")[:1] = b"\xff"


@fault("a tensor is missing")
def _(copy):
    # Its bytes stay, under a name that no layer has.
    copy.header["layers.9.attn.wkv.weight"] = copy.header.pop("layers.2.attn.wkv.weight")
