"""llama.cpp through the low-level interface of llama-cpp-python: a model, contexts, and evaluating token ids in them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np


# At once, and past Python's buffers: it is what a library that ends its process leaves behind.
@llama_cpp.llama_log_callback
def _write_log(_level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    os.write(2, text)


def _failure(what: str) -> RuntimeError:
    return RuntimeError(f"llama.cpp: {what}")


def version() -> dict[str, str]:
    """The versions of the binding and of the library, and the instruction sets that it was built for."""
    return {"llama_cpp_python": llama_cpp.__version__, "llama_cpp": llama_cpp.llama_version().decode(),
            "system": llama_cpp.llama_print_system_info().decode().strip()}


class _BufferOverride(ctypes.Structure):
    """Tensors whose names match `pattern` are kept in `buffer_type`."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


def _experts_on_cpu(layers: int) -> ctypes.Array:
    """Effect of --n-cpu-moe on llama.cpp's programs: routed experts of the first layers stay in the host's memory."""
    cpu = _ggml().ggml_backend_cpu_buffer_type
    cpu.restype = ctypes.c_void_p
    overrides = [_BufferOverride(rf"blk\.{layer}\.ffn_(up|down|gate)_exps".encode(), cpu()) for layer in range(layers)]
    return (_BufferOverride * (layers + 1))(*overrides, _BufferOverride(None, None))


def _ggml() -> ctypes.CDLL:
    """The library below, that llama_cpp has loaded."""
    folder = Path(llama_cpp.llama_cpp._lib._name).parent
    return ctypes.CDLL(str(next(folder.glob("libggml-cpu*"), None) or next(folder.glob("libggml.so*"))))


class Model:
    """Weights of a GGUF file, with all defaults of the library: mapped into memory, repacked where llama.cpp finds that faster.
    `gpu`: all layers on the GPU, but for the routed experts of the first `cpu_experts`."""

    def __init__(self, path: Path, gpu: bool = False, cpu_experts: int = 0) -> None:
        llama_cpp.llama_log_set(_write_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.path = path
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 9999 if gpu else 0
        if gpu and not llama_cpp.llama_supports_gpu_offload():
            raise _failure("this build has no code for a GPU")
        if cpu_experts:
            self.overrides = _experts_on_cpu(cpu_experts)  # The library reads it while it loads.
            parameters.tensor_buft_overrides = ctypes.cast(self.overrides, ctypes.c_void_p)
        self.pointer = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.pointer:
            raise _failure(f"cannot load {path}")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.pointer))


class Context:
    """Sequences 0 to `sequences` - 1 of at most `tokens` tokens each."""

    def __init__(self, model: Model, tokens: int, sequences: int, threads: int, chunk: int = 512) -> None:
        parameters = llama_cpp.llama_context_default_params()
        # Every sequence's share of the cache is padded by the library, never cut.
        parameters.n_ctx = tokens * sequences
        parameters.n_seq_max = sequences
        parameters.n_batch = parameters.n_ubatch = chunk
        parameters.n_threads = parameters.n_threads_batch = threads
        self.model, self.chunk, self.sequences = model, chunk, sequences
        self.pointer = llama_cpp.llama_init_from_model(model.pointer, parameters)
        if not self.pointer:
            raise _failure(f"cannot make a context for {sequences} sequences of {tokens} tokens")
        self.batch = llama_cpp.llama_batch_init(chunk, 0, 1)
        self.lengths = [0] * sequences

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.pointer)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.pointer), False)
        self.lengths = [0] * self.sequences

    def prefill(self, tokens: Sequence[int], sequence: int = 0, all_logits: bool = False) -> np.ndarray:
        """Appends tokens to a sequence in chunks. Logits, float32 [len(tokens) or 1, vocab], of every token or the last."""
        rows = []
        for start in range(0, len(tokens), self.chunk):
            piece = tokens[start:start + self.chunk]
            last = start + len(piece) == len(tokens)
            wanted = [all_logits or (last and i == len(piece) - 1) for i in range(len(piece))]
            rows.append(self._evaluate([(token, sequence) for token in piece], wanted))
        return np.concatenate(rows)

    def decode(self, tokens: Sequence[int]) -> np.ndarray:
        """Appends one token to each of the first len(tokens) sequences. Logits, float32 [len(tokens), vocab]."""
        return self._evaluate([(token, sequence) for sequence, token in enumerate(tokens)], [True] * len(tokens))

    def save(self, sequence: int = 0) -> tuple[ctypes.Array, int]:
        """State of a sequence, and its length."""
        data = (ctypes.c_uint8 * llama_cpp.llama_state_seq_get_size(self.pointer, sequence))()
        if llama_cpp.llama_state_seq_get_data(self.pointer, data, len(data), sequence) != len(data):
            raise _failure("cannot save a sequence")
        return data, self.lengths[sequence]

    def restore(self, saved: tuple[ctypes.Array, int], sequence: int = 0) -> None:
        """Makes a sequence, of any context of this model, what another was when it was saved."""
        data, length = saved
        if llama_cpp.llama_state_seq_set_data(self.pointer, data, len(data), sequence) == 0:
            raise _failure("cannot restore a sequence")
        self.lengths[sequence] = length

    def _evaluate(self, entries: list[tuple[int, int]], wanted: list[bool]) -> np.ndarray:
        batch = self.batch
        batch.n_tokens = len(entries)
        for i, (token, sequence) in enumerate(entries):
            batch.token[i] = token
            batch.pos[i] = self.lengths[sequence]
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted[i]
            self.lengths[sequence] += 1
        status = llama_cpp.llama_decode(self.pointer, batch)
        if status != 0:
            raise _failure(f"llama_decode returned {status}")
        # Waits for the result. The copy is a small part of a percent of the time of a step.
        count = sum(wanted)
        if count == 0:
            llama_cpp.llama_synchronize(self.pointer)
            return np.empty((0, self.model.vocab_size), np.float32)
        logits = llama_cpp.llama_get_logits(self.pointer)
        return np.ctypeslib.as_array(logits, (count, self.model.vocab_size)).copy()
