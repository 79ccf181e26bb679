"""Ways in which a checkpoint of V4.1 is wrong, done to copies of models/tiny-v41. `FAULTS` is that of weight_faults.py, for this model."""

import json

from weight_faults import (
    bf16,
    each_byte,
    exchange,
    exchange_layers,
    floats,
    negate_fp8,
    numbers,
    registry,
    rows,
    times_e8m0,
    times_e8m0_column,
    times_e8m0_row,
    transpose,
    write,
    zero,
)

NUM_LAYERS, NUM_EXPERTS, ENGRAM, SOURCES, SELECTORS = 7, 8, (1, 3), (2, 4), (2, 4, 6)
ALL = range(NUM_LAYERS)
FAULTS, fault, configured = registry(("text_config",))


def every(name, layers, function, *arguments):
    """Of each of the layers a tensor: `{}` in its name is the layer."""
    return lambda copy: [function(copy, name.format(layer), *arguments) for layer in layers]


def experts(layer, part, function, *arguments, which=range(NUM_EXPERTS)):
    return lambda copy: [function(copy, f"layers.{layer}.ffn.experts.{expert}.{part}", *arguments) for expert in which]


def transposed(copy, name, size):
    """A square matrix of numbers of so many bytes."""
    data = copy.bytes(name)
    count, width = copy.header[name]["shape"]
    assert count == width
    old = bytes(data)
    data[:] = b"".join(old[(j * width + i) * size:(j * width + i + 1) * size] for i in range(count) for j in range(width))


def walked_by_columns(copy, name):
    """Bytes that were written column by column."""
    data = copy.bytes(name)
    count, width = copy.header[name]["shape"]
    old = bytes(data)
    data[:] = bytes(old[i % count * width + i // count] for i in range(len(old)))


def coarse(copy, name):
    """Scales of blocks of 128 x 128 where the file has those of 32 x 32."""
    data = copy.bytes(name)
    width = copy.header[name]["shape"][1]
    old = bytes(data)
    data[:] = bytes(old[i // width // 4 * 4 * width + i % width // 4 * 4] for i in range(len(old)))


def permuted(copy, name, order):
    values = numbers(copy, name, "f")
    write(copy, name, "f", [values[i] for i in order])


def rotated(copy, names):
    entries = [copy.header[name] for name in names]
    for name, entry in zip(names, entries[1:] + entries[:1]):
        copy.header[name] = entry


def tokenizer(change):
    def damage(copy):
        path = copy.directory / "tokenizer.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))
    return damage


def exchange_words(document):
    vocabulary = document["model"]["vocab"]
    first, second = "\u0120capital", "\u0120the"
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def halves(i, n):
    """Rotary halves in place of pairs, of heads of 128."""
    head, row = divmod(i, 128)
    return i if row < 64 else head * 128 + 64 + (row - 64) // 2 + 32 * ((row - 64) % 2)


ONE_OFF = lambda i, n: (i + 1) % n  # noqa: E731
REVERSED = lambda i, n: n - 1 - i  # noqa: E731
HALF_TURN = lambda i, n: (i + n // 2) % n  # noqa: E731
COMB = [*range(8), *(8 + 4 * (i % 4) + i // 4 for i in range(16))]
PRE_POST = [4, 5, 6, 7, 0, 1, 2, 3, *range(8, 24)]

# --- the configuration ---
configured("swiglu_limit 1", swiglu_limit=1.0)
configured("swiglu_limit of the release", swiglu_limit=10.0)
configured("rms_norm_eps of another model", rms_norm_eps=0.01)
configured("rms_norm_eps of V4", rms_norm_eps=1e-6)
configured("rope_theta of another model", rope_theta=1000000)
configured("compressed theta of the window", compress_rope_theta=10000)
configured("YaRN's factor 4", rope_scaling={"factor": 4})
configured("YaRN over 4096 positions", rope_scaling={"original_max_position_embeddings": 4096})
configured("route scale of another model", routed_scaling_factor=2.5)
configured("route scale 1", routed_scaling_factor=1.0)
configured("window of another model", sliding_window=16)
configured("one Sinkhorn pass", hc_sinkhorn_iters=1)
configured("hc_eps of another model", hc_eps=0.1)
configured("an expert a token in place of three", num_experts_per_tok=1)
configured("two experts a token in place of three", num_experts_per_tok=2)
configured("router temperature left out", gate_temp=1.0)
configured("router temperature inverted", gate_temp=2.0)
configured("weights of experts not divided", norm_topk_prob=False)
configured("two entries for the indexer", index_topk=2)
configured("two candidate blocks", candidate_topk_blocks=2)
configured("candidate blocks of one row", candidate_block_size=1)
configured("no candidates", candidate_source_layer_id=-1)
configured("entries of one token for all", compress_ratios=[0, 0, 1, 1, 1, 1, 1])
configured("entries of two tokens for all", compress_ratios=[0, 0, 2, 2, 2, 2, 2])
configured("ratios exchanged", compress_ratios=[0, 0, 1, 1, 2, 2, 2])
configured("one source of entries", kv_source_layer_ids=[2])
configured("a selector fewer", index_source_layer_ids=[2, 4])
configured("another selector", index_source_layer_ids=[2, 4, 5])
configured("n-gram layers in reverse", engram_layer_ids=[3, 1])
configured("pad class of another token", engram_pad_token_id=100)
configured("n-grams of three tokens", engram_max_ngram_size=3)
configured("another size of n-gram tables", engram_vocab_size=1400)
configured("other token classes", engram_compressed_vocab_size=3453)
configured("heads of another size", qk_rope_head_dim=32)
fault("two words exchanged in the tokenizer")(tokenizer(exchange_words))

# --- n-gram tables ---
for words, damage in {
    "all zeros": every("layers.{}.engram.embed.weight", [1], zero),
    "half of it zeros": every("layers.{}.engram.embed.weight", [3], zero, 0.5),
    "a twentieth of it zeros": every("layers.{}.engram.embed.weight", [3], zero, 0.4, 0.45),
    "one row off": every("layers.{}.engram.embed.weight", [1], rows, ONE_OFF),
    "one row off, scales too": lambda copy: [rows(copy, f"layers.1.engram.embed.{part}", ONE_OFF) for part in ("weight", "scale")],
    "negated": every("layers.{}.engram.embed.weight", [3], negate_fp8),
    "scales one row off": every("layers.{}.engram.embed.scale", [1], rows, ONE_OFF),
    "scales of a half": every("layers.{}.engram.embed.scale", [1], times_e8m0, -1),
    "scales times 16": every("layers.{}.engram.embed.scale", [3], times_e8m0, 4),
    "scales zero": every("layers.{}.engram.embed.scale", [3], zero),
    "scales all 1": every("layers.{}.engram.embed.scale", [1], each_byte, lambda b: 127),
    "2-grams and 3-grams exchanged": lambda copy: [rows(copy, f"layers.1.engram.embed.{part}", lambda i, n: (i + n // 3) % n) for part in ("weight", "scale")],
    "halves of its rows exchanged": every("layers.{}.engram.embed.weight", [1, 3], rows, HALF_TURN),
}.items():
    fault("n-gram table, " + words)(damage)
for words, damage in {
    "value in front of keys": lambda copy: [rows(copy, f"layers.1.engram.wkv.{part}", lambda i, n: (i + n * 4 // 5) % n) for part in ("weight", "scale")],
    "of the other layer": lambda copy: exchange_layers(copy, 1, 3, r"engram\.wkv\..*"),
    "negated": every("layers.{}.engram.wkv.weight", [3], negate_fp8),
    "value zero": every("layers.{}.engram.wkv.weight", [1], zero, 0.8),
    "scales times 4": every("layers.{}.engram.wkv.scale", [1], times_e8m0, 2),
    "scales of 128": every("layers.{}.engram.wkv.scale", ENGRAM, coarse),
}.items():
    fault("n-gram wkv, " + words)(damage)
fault("n-gram q_weight zero")(every("layers.{}.engram.q_weight", [1], zero))
fault("n-gram q_weight negated")(every("layers.{}.engram.q_weight", [1, 3], bf16, lambda x: -x))
fault("n-gram k_weight left at one")(every("layers.{}.engram.k_weight", [3], bf16, lambda x: 1.0))
fault("n-gram weights of the other layer")(lambda copy: exchange_layers(copy, 1, 3, r"engram\.[qk]_weight"))

# --- embedding, head, final norm ---
fault("embedding and head exchanged")(lambda copy: exchange(copy, "embed.weight", "head.weight"))
fault("embedding one row off")(lambda copy: rows(copy, "embed.weight", ONE_OFF))
fault("head one row off")(lambda copy: rows(copy, "head.weight", ONE_OFF))
fault("embedding, half of it zeros")(lambda copy: zero(copy, "embed.weight", 0.5))
fault("final norm left at one")(lambda copy: bf16(copy, "norm.weight", lambda x: 1.0))
fault("final norm negated")(lambda copy: bf16(copy, "norm.weight", lambda x: -x))

# --- attention ---
fault("attention of two layers exchanged")(lambda copy: exchange_layers(copy, 5, 6, r"attn\.(wq_a|wq_b|wkv|wo_a|wo_b|q_norm|kv_norm|attn_sink).*"))
for module in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b"):
    fault(f"{module} of two layers exchanged")(lambda copy, module=module: exchange_layers(copy, 3, 5, rf"attn\.{module}\..*"))
    fault(f"scales of {module} times 2")(every(f"layers.{{}}.attn.{module}.scale", [3], times_e8m0, 1))
    fault(f"scales of {module} of 128 everywhere")(every(f"layers.{{}}.attn.{module}.scale", ALL, coarse))
    fault(f"{module} negated")(every(f"layers.{{}}.attn.{module}.weight", [4], negate_fp8))
fault("wo_b transposed")(every("layers.{}.attn.wo_b.weight", [3], transpose))
fault("wo_a transposed")(every("layers.{}.attn.wo_a.weight", [4], transpose))
fault("scales of a row of wo_b times 4")(lambda copy: times_e8m0_row(copy, "layers.3.attn.wo_b.scale", 3, 2))
fault("scales of a column of wkv of an eighth")(lambda copy: times_e8m0_column(copy, "layers.2.attn.wkv.scale", 1, -3))
fault("scales of wkv walked by columns")(every("layers.{}.attn.wkv.scale", ALL, walked_by_columns))
fault("all dense scales times 2")(lambda copy: [times_e8m0(copy, name, 1) for name in copy.names(".scale") if ".attn.w" in name])
fault("groups of wo_a exchanged")(lambda copy: [rows(copy, f"layers.1.attn.wo_a.{part}", HALF_TURN) for part in ("weight", "scale")])
fault("heads of wq_b in reverse order")(every("layers.{}.attn.wq_b.weight", [2], rows, lambda i, n: (n // 128 - 1 - i // 128) * 128 + i % 128))
fault("rotary halves in wq_b")(every("layers.{}.attn.wq_b.weight", ALL, rows, halves))
fault("rotary part of wkv in front")(every("layers.{}.attn.wkv.weight", ALL, rows, lambda i, n: (i + 64) % n))
fault("a sink zeroed")(every("layers.{}.attn.attn_sink", [3], zero))
fault("all sinks zeroed")(every("layers.{}.attn.attn_sink", ALL, zero))
fault("sinks that take all attention")(every("layers.{}.attn.attn_sink", ALL, floats, lambda x: x + 20))
fault("a sink that takes all attention")(every("layers.{}.attn.attn_sink", [4], floats, lambda x: x + 12))
fault("sinks of another layer")(lambda copy: exchange_layers(copy, 3, 5, r"attn\.attn_sink"))
for norm in ("attn.q_norm", "attn.kv_norm", "attn_norm", "ffn_norm"):
    fault(f"{norm} left at one")(every(f"layers.{{}}.{norm}.weight", [3], bf16, lambda x: 1.0))
    fault(f"{norm} of a quarter")(every(f"layers.{{}}.{norm}.weight", [4], bf16, lambda x: x / 4))
    fault(f"{norm} of two layers exchanged")(lambda copy, norm=norm: exchange_layers(copy, 1, 5, norm.replace(".", r"\.") + r"\.weight"))
fault("norms exchanged in a layer")(lambda copy: exchange(copy, "layers.4.attn_norm.weight", "layers.4.ffn_norm.weight"))
fault("q_norm and kv_norm exchanged")(lambda copy: exchange(copy, "layers.4.attn.q_norm.weight", "layers.4.attn.kv_norm.weight"))

# --- shared entries, keys and choices ---
for part in ("compressor.wkv.weight", "compressor.norm.weight", "indexer.wk.weight", "indexer.k_norm.weight", "indexer.weights_proj.weight"):
    fault(f"{part} of the other source")(lambda copy, part=part: exchange_layers(copy, 2, 4, r"attn\." + part.replace(".", r"\.")))
    fault(f"{part} zero")(every("layers.{}.attn." + part, [4], zero))
    fault(f"{part} times 4")(every("layers.{}.attn." + part, [4], bf16, lambda x: x * 4))
fault("wkv and wgate of a compressor exchanged")(lambda copy: exchange(copy, "layers.2.attn.compressor.wkv.weight", "layers.2.attn.compressor.wgate.weight"))
fault("wgate zero")(every("layers.{}.attn.compressor.wgate.weight", [2], zero))
fault("wgate negated")(every("layers.{}.attn.compressor.wgate.weight", [2], bf16, lambda x: -x))
fault("compressor's norm left at one")(every("layers.{}.attn.compressor.norm.weight", [4], bf16, lambda x: 1.0))
fault("compressor.wkv negated")(every("layers.{}.attn.compressor.wkv.weight", [4], bf16, lambda x: -x))
fault("compressor.wkv, rotary part in front")(every("layers.{}.attn.compressor.wkv.weight", SOURCES, rows, HALF_TURN))
fault("indexer.wk transposed")(every("layers.{}.attn.indexer.wk.weight", [4], transposed, 2))
fault("indexer.wk negated")(every("layers.{}.attn.indexer.wk.weight", [4], bf16, lambda x: -x))
fault("indexer.wq_b of another selector")(lambda copy: exchange_layers(copy, 4, 6, r"attn\.indexer\.wq_b\..*"))
fault("indexer.wq_b heads reversed")(every("layers.{}.attn.indexer.wq_b.weight", [4], rows, lambda i, n: (3 - i // 128) * 128 + i % 128))
fault("indexer.wq_b for wq_b")(lambda copy: [exchange(copy, f"layers.4.attn.{p}", f"layers.4.attn.indexer.{p}") for p in ("wq_b.weight", "wq_b.scale")])
fault("indexer's weights_proj negated")(every("layers.{}.attn.indexer.weights_proj.weight", [4], bf16, lambda x: -x))

# --- hyper-connections ---
for part in ("fn", "base", "scale"):
    fault(f"hc_attn_{part} zero")(every(f"layers.{{}}.hc_attn_{part}", [4], zero))
    fault(f"hc_attn_{part} zero everywhere")(every(f"layers.{{}}.hc_attn_{part}", ALL, zero))
    fault(f"hc_ffn_{part} negated")(every(f"layers.{{}}.hc_ffn_{part}", [3], floats, lambda x: -x))
    fault(f"hc_attn_{part} times 8")(every(f"layers.{{}}.hc_attn_{part}", [2], floats, lambda x: x * 8))
    fault(f"hc_{part} of attention and experts exchanged")(lambda copy, part=part: exchange(copy, f"layers.4.hc_attn_{part}", f"layers.4.hc_ffn_{part}"))
    fault(f"hc_attn_{part} of two layers exchanged")(lambda copy, part=part: exchange_layers(copy, 2, 5, f"hc_attn_{part}"))
fault("comb transposed")(lambda copy: [rows(copy, f"layers.{i}.hc_{part}", lambda j, n: COMB[j]) for i in ALL for part in ("attn_fn", "attn_base", "ffn_fn", "ffn_base")])
fault("pre and post exchanged")(lambda copy: [rows(copy, f"layers.{i}.hc_ffn_{part}", lambda j, n: PRE_POST[j]) for i in ALL for part in ("fn", "base")])
fault("pre and post exchanged in a layer")(lambda copy: [rows(copy, f"layers.3.hc_ffn_{part}", lambda j, n: PRE_POST[j]) for part in ("fn", "base")])
fault("hc_ffn_scale in another order")(every("layers.{}.hc_ffn_scale", ALL, permuted, [2, 0, 1]))

# --- experts and router ---
for name, layers in (("in every layer", ALL), ("in one layer", [2])):
    fault(f"gate and up exchanged {name}")(lambda copy, layers=layers: [
        copy.swap(f"layers.{i}.ffn.experts.{e}.w1", f"layers.{i}.ffn.experts.{e}.w3") for i in layers for e in range(NUM_EXPERTS)])
fault("nibbles exchanged in w2 of a layer")(experts(1, "w2.weight", each_byte, lambda b: b >> 4 | b << 4 & 255))
fault("nibbles exchanged in all experts")(lambda copy: [each_byte(copy, n, lambda b: b >> 4 | b << 4 & 255) for n in copy.names(".weight") if ".experts." in n])
fault("scales of w1 of a layer times 2")(experts(3, "w1.scale", times_e8m0, 1))
fault("scales of w2 of a layer times 4")(experts(5, "w2.scale", times_e8m0, 2))
fault("all experts' scales of a half")(lambda copy: [times_e8m0(copy, n, -1) for n in copy.names(".scale") if ".experts." in n])
fault("experts' scales all 1")(experts(4, "w1.scale", each_byte, lambda b: 127))
fault("experts' scales walked by columns")(experts(2, "w1.scale", walked_by_columns))
fault("an expert's scales, half of them zeros")(experts(4, "w1.scale", zero, 0.5, which=[3]))
fault("an expert zero")(experts(4, "w2.weight", zero, which=[3]))
fault("an expert's scales times 32")(experts(4, "w2.scale", times_e8m0, 5, which=[3]))
fault("experts one off in a layer")(lambda copy: [
    rotated(copy, [f"layers.3.ffn.experts.{e}.{w}.{p}" for e in range(NUM_EXPERTS)]) for w in ("w1", "w2", "w3") for p in ("weight", "scale")])
fault("experts of two layers exchanged")(lambda copy: exchange_layers(copy, 2, 5, r"ffn\.experts\..*"))
fault("shared experts of two layers exchanged")(lambda copy: exchange_layers(copy, 3, 6, r"ffn\.shared_experts\..*"))
fault("w2 of a shared expert negated")(every("layers.{}.ffn.shared_experts.w2.weight", [2], negate_fp8))
fault("gate and up of a shared expert exchanged")(lambda copy: copy.swap("layers.2.ffn.shared_experts.w1", "layers.2.ffn.shared_experts.w3"))
fault("scales of a shared expert transposed")(lambda copy: [walked_by_columns(copy, f"layers.{i}.ffn.shared_experts.w2.scale") for i in ALL])
fault("rows of a router reversed")(every("layers.{}.ffn.gate.weight", [4], rows, REVERSED))
fault("a router negated")(every("layers.{}.ffn.gate.weight", [4], bf16, lambda x: -x))
fault("a router zero")(every("layers.{}.ffn.gate.weight", [4], zero))
fault("routers of two layers exchanged")(lambda copy: exchange_layers(copy, 2, 5, r"ffn\.gate\.weight"))
fault("a router's bias lost")(every("layers.{}.ffn.gate.bias", [2], zero))
fault("a router's bias times 30")(every("layers.{}.ffn.gate.bias", [2], floats, lambda x: 30 * x))
fault("biases for images in place of those for text")(lambda copy: [exchange(copy, f"layers.{i}.ffn.gate.bias", f"layers.{i}.ffn.gate.bias_vl") for i in ALL])

# --- what a loader must refuse ---
fault("a block scale that is NaN")(lambda copy: copy.bytes("layers.1.attn.wkv.scale").__setitem__(slice(0, 1), b"\xff"))
fault("a scale of an n-gram row that is NaN")(lambda copy: copy.bytes("layers.1.engram.embed.scale").__setitem__(slice(0, 1), b"\xff"))
fault("a tensor is missing")(lambda copy: copy.header.__setitem__("layers.9.attn.wkv.weight", copy.header.pop("layers.2.attn.wkv.weight")))
