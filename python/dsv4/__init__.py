"""dsv4 in Python, over libdsv4.so (docs/python.md). Nothing to build; ctypes releases the GIL in every call."""

from __future__ import annotations

import asyncio
import ctypes as c
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._counted import counted

ABI = 5
RULES = ("json_schema", "regex", "choice", "grammar", "structural_tag")  # From 1.
LEVELS = {1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR}
KINDS = ("reasoning", "content", "tool_call_begin", "arguments", "tool_call_end", "done")
Messages = Sequence[Mapping[str, Any]]  # {"role": ..., "content": ...}, as of the OpenAI API.
_PIECE = 512  # Tokens of a prompt between two looks at KeyboardInterrupt.
_CALL_SECONDS, _MOST_STEPS = 0.05, 64  # Steps of a batch between two looks.


class DSV4Error(Exception):
    """A call failed; `code` is a dsv4_code of dsv4.h."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Error(c.Structure):
    _fields_ = [("code", c.c_int32), ("message", c.c_char * 1020)]


_OnProgress = c.CFUNCTYPE(c.c_int32, c.c_int64, c.c_int64, c.c_void_p)
_OnLog = c.CFUNCTYPE(None, c.c_int32, c.c_char_p, c.c_void_p)


class _ModelOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("path", c.c_char_p), ("backend", c.c_char_p), ("numerics", c.c_char_p),
                ("revision", c.c_char_p), ("threads", c.c_int32), ("device", c.c_int32), ("max_layers", c.c_int32),
                ("on_progress", _OnProgress), ("on_log", _OnLog), ("user", c.c_void_p)]


class _Sampling(c.Structure):
    _fields_ = [("size", c.c_size_t), ("temperature", c.c_float), ("top_p", c.c_float), ("min_p", c.c_float),
                ("repetition_penalty", c.c_float), ("presence_penalty", c.c_float), ("frequency_penalty", c.c_float),
                ("top_k", c.c_int32), ("rule_kind", c.c_int32), ("seed", c.c_uint64), ("rule", c.c_char_p)]


class _Delta(c.Structure):
    _fields_ = [("size", c.c_size_t), ("kind", c.c_int32), ("call", c.c_int32), ("text", c.c_void_p),
                ("text_size", c.c_size_t)]


class _Row(c.Structure):
    _fields_ = [("size", c.c_size_t), ("session", c.c_void_p), ("sampler", c.c_void_p), ("left", c.c_int64)]


_OnDelta = c.CFUNCTYPE(None, c.POINTER(_Delta), c.c_void_p)


def _load() -> c.CDLL:
    here = Path(__file__).resolve()
    beside = [here.parent / "libdsv4.so", here.parents[2] / "build" / "shared" / "libdsv4.so"]
    given = os.environ.get("DSV4_LIBRARY")
    found = given or next((str(path) for path in beside if path.exists()), f"libdsv4.so.{ABI}")
    try:
        library = c.CDLL(found)
        abi = library.dsv4_abi()
    except (OSError, AttributeError) as error:
        where = f"DSV4_LIBRARY={given}" if given else f"neither {' nor '.join(map(str, beside))} nor a libdsv4.so.{ABI} of the system"
        raise ImportError(f"dsv4 cannot load its library, {where}: {error}. `pip install .` in the source tree builds it for Python; "
                          "DSV4_LIBRARY names one that is built (./dev build --preset shared: build/shared/libdsv4.so)") from None
    if abi != ABI:
        raise ImportError(f"{found}: has ABI {abi}, wanted {ABI}: package and library are of different versions")
    for name in ("dsv4_model_vocab_size", "dsv4_model_context_length", "dsv4_model_max_tokens", "dsv4_session_length"):
        getattr(library, name).restype = c.c_int64
        getattr(library, name).argtypes = [c.c_void_p]
    for name in ("dsv4_buffer_data", "dsv4_prompt_ids"):
        getattr(library, name).restype = c.c_void_p
    for name in ("dsv4_model_backend", "dsv4_prompt_notice"):
        getattr(library, name).restype = c.c_char_p
        getattr(library, name).argtypes = [c.c_void_p]
    library.dsv4_buffer_size.restype = c.c_size_t
    return library


_lib = _load()


_errors = threading.local()  # A struct for each thread: making one for each call takes longer than most calls.


def _call(name: str, *arguments: object) -> None:
    try:
        error, pointer = _errors.made
    except AttributeError:
        error = _Error()
        pointer = c.byref(error)
        _errors.made = error, pointer
    if code := getattr(_lib, name)(*arguments, pointer):
        raise DSV4Error(code, error.message.decode())


def _ids(ids: Sequence[int]) -> c.Array[c.c_int32]:
    return (c.c_int32 * len(ids))(*ids)


def _take(buffer: c.c_void_p) -> bytes:
    data = c.string_at(_lib.dsv4_buffer_data(buffer), _lib.dsv4_buffer_size(buffer))
    _lib.dsv4_buffer_free(buffer)
    return data


class _Handle:
    """A handle and what must outlive it."""

    def __init__(self, kind: str, handle: c.c_void_p, owner: object) -> None:
        self._kind, self._handle, self._free = kind, handle, getattr(_lib, f"dsv4_{kind}_free")
        self._owner: object = owner

    @property
    def handle(self) -> c.c_void_p:
        if not self._handle:
            raise ValueError(f"{self._kind}: closed")
        return self._handle

    @property
    def closed(self) -> bool:
        return not self._handle

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        if self._handle:
            self._free(self._handle)
            self._handle, self._owner = c.c_void_p(), None


@dataclass
class Sampling:
    """As dsv4_sampling; temperature 0 is greedy. At most one of the last five says what the content has to be."""

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None  # None: another one every time.
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None  # GBNF or Lark.
    structural_tag: dict[str, Any] | str | None = None

    def _fields(self) -> dict[str, object]:
        """Fields of dsv4_sampling."""
        fields = dict(vars(self))
        given = [(kind, rule) for kind, name in enumerate(RULES, 1) if (rule := fields.pop(name)) is not None]
        if len(given) > 1:
            raise ValueError(f"Sampling: got {' and '.join(RULES[kind - 1] for kind, _ in given)}, wanted one at most")
        for kind, rule in given:
            text = rule if isinstance(rule, str) else json.dumps(rule)
            fields.update(rule_kind=kind, rule=text.encode())
        if self.seed is None:
            fields["seed"] = secrets.randbits(64)
        return fields


@dataclass
class Delta:
    """A piece of an answer; kind is one of KINDS."""

    kind: str
    text: str
    call: int = -1


@dataclass(frozen=True)
class ToolCall:
    """A call that an answer makes; `arguments` is JSON as the model wrote it."""

    name: str
    arguments: str


class Answer(str):
    """The content of an answer, and what belongs to it."""

    reasoning: str
    tool_calls: list[ToolCall]
    finish_reason: str  # "stop", "length" (max_tokens) or "tool_calls".
    prompt_tokens: int
    completion_tokens: int
    notice: str  # What the model's folder says of a question in words that the model does not know; else empty.

    @property
    def text(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        start = str(self) if len(self) <= 40 else self[:37] + "..."
        calls = f", calls {', '.join(call.name for call in self.tool_calls)[:30]}" if self.tool_calls else ""
        return f"<Answer {str(start)!r}{calls}, {self.finish_reason}, {counted(self.completion_tokens, 'token')}>"


class _Collected:
    """Deltas of an answer as they come, and how it ended."""

    def __init__(self) -> None:
        self.text, self.reasoning = "", ""
        self.calls: list[list[str]] = []  # Name and arguments of each.
        self.finish_reason, self.prompt_tokens, self.completion_tokens, self.notice = "length", 0, 0, ""

    def add(self, delta: Delta) -> None:
        if delta.kind == "content":
            self.text += delta.text
        elif delta.kind == "reasoning":
            self.reasoning += delta.text
        elif delta.kind == "tool_call_begin":
            self.calls.append([delta.text, ""])
        elif delta.kind == "arguments":
            self.calls[-1][1] += delta.text

    def answer(self) -> Answer:
        answer = Answer(self.text)
        answer.reasoning, answer.tool_calls = self.reasoning, [ToolCall(name, arguments) for name, arguments in self.calls]
        answer.finish_reason = "tool_calls" if self.calls and self.finish_reason == "stop" else self.finish_reason
        answer.prompt_tokens, answer.completion_tokens, answer.notice = self.prompt_tokens, self.completion_tokens, self.notice
        return answer


class Session:
    """Token ids in, logits out. One thread at a time."""

    def __init__(self, llm: LLM, _handle: c.c_void_p | None = None) -> None:
        handle = _handle or c.c_void_p()
        if _handle is None:
            _call("dsv4_session_new", llm._model.handle, c.byref(handle))
        self._llm, self._session = llm, _Handle("session", handle, llm._model)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives its memory back now; nothing else may be called after it."""
        self._session.close()

    def __repr__(self) -> str:
        return "<Session, closed>" if self._session.closed else f"<Session of {counted(len(self), 'token')}>"

    def __len__(self) -> int:
        return int(_lib.dsv4_session_length(self._session.handle))

    def append(self, ids: Sequence[int], all_logits: bool = False) -> None:
        """Reads tokens."""
        _call("dsv4_session_append", self._session.handle, _ids(ids), c.c_size_t(len(ids)), int(all_logits))

    def logits(self) -> list[memoryview[float]]:
        """Rows of the last append, float32 each."""
        data, rows = c.c_void_p(), c.c_size_t()
        _call("dsv4_session_logits", self._session.handle, c.byref(data), c.byref(rows))
        row_bytes = self._llm.vocab_size * 4
        return [memoryview(c.string_at((data.value or 0) + i * row_bytes, row_bytes)).cast("f") for i in range(rows.value)]

    def snapshot(self) -> bytes:
        """The state, for restore here or in another process; the logits are not part of it."""
        out = c.c_void_p()
        _call("dsv4_session_snapshot", self._session.handle, c.byref(out))
        return _take(out)

    def restore(self, state: bytes) -> None:
        """Goes back to a snapshot of the same model."""
        _call("dsv4_session_restore", self._session.handle, state, c.c_size_t(len(state)))

    def rewind(self, num_tokens: int) -> None:
        """Takes the last tokens back."""
        _call("dsv4_session_rewind", self._session.handle, c.c_int64(num_tokens))

    def fork(self) -> Session:
        """A copy that goes on by itself."""
        handle = c.c_void_p()
        _call("dsv4_session_fork", self._session.handle, c.byref(handle))
        return Session(self._llm, handle)


@dataclass(eq=False)
class _Answer:
    """One of several that go on together."""

    place: int  # Of its prompt.
    session: Session
    sampler: _Handle
    ids: list[int]

    def row(self, max_tokens: int) -> _Row:
        return _Row(c.sizeof(_Row), self.session._session.handle, self.sampler.handle, max_tokens - len(self.ids))


class _Steps:
    """Steps of answers. As many in one call of the library as take about _CALL_SECONDS. Between calls there is time for KeyboardInterrupt.
    Python's work then, with caches that a step has emptied, costs most if it is done for every token."""

    def __init__(self, most_rows: int) -> None:
        self._steps, self._tokens, self._done = 1, (c.c_int32 * (_MOST_STEPS * most_rows))(), c.c_size_t()

    def run(self, rows: c.Array[_Row], answers: list[_Answer]) -> None:
        """Goes on until a row ends, or for _CALL_SECONDS."""
        begin, num = time.monotonic(), len(rows)
        _call("dsv4_decode", rows, c.c_size_t(num), c.c_size_t(self._steps), self._tokens, c.byref(self._done))
        done, seconds = self._done.value, time.monotonic() - begin
        for i, answer in enumerate(answers):
            answer.ids += self._tokens[i:done * num:num]
        self._steps = max(1, min(2 * self._steps, _MOST_STEPS, int(_CALL_SECONDS * done / max(seconds, 1e-9))))


def _request(messages: Messages | str, tools: Sequence[Mapping[str, Any]] | None, thinking_mode: str | None,
             effort: str | None) -> bytes:
    """Result of dsv4_render."""
    asked: Messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    given = {"messages": asked, "tools": tools, "thinking_mode": thinking_mode, "effort": effort}
    return json.dumps({name: value for name, value in given.items() if value is not None}).encode()


class LLM:
    """A model of a checkpoint directory. Threads may share it. Warnings go to the logger "dsv4"."""

    def __init__(self, path: str | os.PathLike[str], backend: str = "auto", threads: int = 0, device: int = 0,
                 numerics: str = "release", max_layers: int = 0,
                 on_progress: Callable[[int, int], object] | None = None) -> None:
        """`on_progress` is called with the layers done and all layers; an exception in it ends the load, and leaves it."""
        raised: list[BaseException] = []

        def progress(done: int, total: int, _: object) -> int:
            try:
                if on_progress:
                    on_progress(done, total)
            except BaseException as error:  # KeyboardInterrupt too: nothing may pass through the library.
                raised.append(error)
            return len(raised)

        self._log = _OnLog(lambda level, text, _: logging.getLogger("dsv4").log(LEVELS[level], "%s", text.decode()))
        options = _ModelOptions(size=c.sizeof(_ModelOptions), path=os.fsencode(path), backend=backend.encode(),
                                numerics=numerics.encode(), threads=threads, device=device, max_layers=max_layers,
                                on_progress=_OnProgress(progress), on_log=self._log)
        handle = c.c_void_p()
        try:
            _call("dsv4_model_open", c.byref(options), c.byref(handle))
        except DSV4Error:
            if raised:
                raise raised[0] from None
            raise
        self._opened: _Handle | None = _Handle("model", handle, self._log)
        self._name = os.fspath(path)
        self.backend: str = _lib.dsv4_model_backend(handle).decode()  # "cuda (NVIDIA H200)"
        self.vocab_size: int = _lib.dsv4_model_vocab_size(handle)
        self.context_length: int = _lib.dsv4_model_context_length(handle)
        self._stops = frozenset(token for token in range(self.vocab_size) if _lib.dsv4_model_is_stop(handle, token))

    @property
    def _model(self) -> _Handle:
        if self._opened is None:
            raise ValueError("LLM: closed")
        return self._opened

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the weights' memory back, as soon as its sessions are gone too."""
        self._opened = None

    def __repr__(self) -> str:
        return f"<LLM {self._name}, {self.backend if self._opened else 'closed'}, context {self.context_length}>"

    def tokenize(self, text: str, markers: bool = False) -> list[int]:
        """Ids of a text; with `markers`, "<think>" and its like are single tokens."""
        data, out = text.encode(), c.c_void_p()
        _call("dsv4_tokenize", self._model.handle, data, c.c_size_t(len(data)), int(markers), c.byref(out))
        return memoryview(_take(out)).cast("i").tolist()

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        out = c.c_void_p()
        _call("dsv4_detokenize", self._model.handle, _ids(ids), c.c_size_t(len(ids)), c.byref(out))
        return _take(out).decode(errors="replace")  # Tokens may end inside a character.

    def session(self) -> Session:
        """An empty sequence."""
        return Session(self)

    def logits(self, ids: Sequence[int]) -> list[memoryview[float]]:
        """A float32 row for every token."""
        session = self.session()
        session.append(ids, all_logits=True)
        return session.logits()

    def _sampler(self, sampling: Sampling | None, prompt: _Handle | None) -> _Handle:
        fields, out = (sampling or Sampling())._fields(), c.c_void_p()
        _call("dsv4_sampler_new", self._model.handle, c.byref(_Sampling(size=c.sizeof(_Sampling), **fields)),
              prompt.handle if prompt else None, c.byref(out))
        return _Handle("sampler", out, self._model)

    def generate(self, prompts: Sequence[str], sampling: Sampling | None = None, max_tokens: int | None = None,
                 batch: int = 8) -> list[str]:
        """Continues every text as it is, without the chat template; `batch` of them in one step."""
        return self._generate(prompts, sampling, self._most(max_tokens), batch, threading.Event())

    def _generate(self, prompts: Sequence[str], sampling: Sampling | None, max_tokens: int, batch: int,
                  cancelled: threading.Event) -> list[str]:
        if isinstance(prompts, str) or batch < 1 or max_tokens < 1:
            raise ValueError(f"generate: got prompts {type(prompts).__name__}, batch {batch}, max_tokens {max_tokens}; "
                             "wanted a list of texts, 1 or more, 1 or more")
        texts = [""] * len(prompts)
        waiting, steps = list(range(len(prompts)))[::-1], _Steps(min(batch, len(prompts)))
        running: list[_Answer] = []
        rows: c.Array[_Row] | None = None  # Of those that run.
        while (waiting or running) and not cancelled.is_set():
            while waiting and len(running) < batch:
                place, session = waiting.pop(), self.session()
                ids = self.tokenize(prompts[place])
                if not ids:
                    raise ValueError(f"generate: prompt {place} has no token")
                for begin in range(0, len(ids), _PIECE):
                    session.append(ids[begin:begin + _PIECE])
                running.append(_Answer(place, session, self._sampler(sampling, None), []))
                rows = None
            rows = rows or (_Row * len(running))(*(answer.row(max_tokens) for answer in running))
            steps.run(rows, running)
            for answer in list(running):
                if answer.ids[-1] in self._stops:
                    answer.ids.pop()
                elif len(answer.ids) < max_tokens:
                    continue
                running.remove(answer)
                rows = None
                texts[answer.place] = self.detokenize(answer.ids) if answer.ids else ""
        return texts

    async def agenerate(self, prompts: Sequence[str], sampling: Sampling | None = None, max_tokens: int | None = None,
                        batch: int = 8) -> list[str]:
        """As generate, in a thread. A cancelled task ends it between two steps."""
        cancelled = threading.Event()
        try:
            return await asyncio.to_thread(self._generate, prompts, sampling, self._most(max_tokens), batch, cancelled)
        finally:
            cancelled.set()

    async def astream(self, messages: Messages | str, *, sampling: Sampling | None = None, max_tokens: int | None = None,
                      stop: Sequence[str] = (), tools: Sequence[Mapping[str, Any]] | None = None,
                      thinking_mode: str | None = None, effort: str | None = None) -> AsyncIterator[Delta]:
        """As stream; every step runs in a thread. A cancelled task ends the answer at the next token."""
        request = _request(messages, tools, thinking_mode, effort)
        async for delta in self._astream(request, sampling, max_tokens, stop, _Collected()):
            yield delta

    async def achat(self, messages: Messages | str, *, sampling: Sampling | None = None, max_tokens: int | None = None,
                    stop: Sequence[str] = (), tools: Sequence[Mapping[str, Any]] | None = None,
                    thinking_mode: str | None = None, effort: str | None = None) -> Answer:
        """As chat."""
        answer = _Collected()
        async for _ in self._astream(_request(messages, tools, thinking_mode, effort), sampling, max_tokens, stop, answer):
            pass
        return answer.answer()

    def stream(self, messages: Messages | str, *, sampling: Sampling | None = None, max_tokens: int | None = None,
               stop: Sequence[str] = (), tools: Sequence[Mapping[str, Any]] | None = None,
               thinking_mode: str | None = None, effort: str | None = None) -> Generator[Delta, None, None]:
        """Deltas of an answer. `messages`: a conversation, or the user's question alone. `thinking_mode`: "thinking" or "chat"; `effort` as the model's
        revision has it; `tools` as of the OpenAI API. KeyboardInterrupt ends it between tokens."""
        return self._stream(_request(messages, tools, thinking_mode, effort), sampling, max_tokens, stop, _Collected())

    def chat(self, messages: Messages | str, *, sampling: Sampling | None = None, max_tokens: int | None = None,
             stop: Sequence[str] = (), tools: Sequence[Mapping[str, Any]] | None = None,
             thinking_mode: str | None = None, effort: str | None = None) -> Answer:
        """An answer, with arguments as of stream: a str, its content, that knows reasoning, tool_calls, finish_reason and counts of tokens."""
        answer = _Collected()
        for _ in self._stream(_request(messages, tools, thinking_mode, effort), sampling, max_tokens, stop, answer):
            pass
        return answer.answer()

    def _most(self, max_tokens: int | None) -> int:
        own = int(_lib.dsv4_model_max_tokens(self._model.handle))
        return max_tokens if max_tokens is not None else min(own or 1024, 1024)

    async def _astream(self, request: bytes, sampling: Sampling | None, max_tokens: int | None, stop: Sequence[str],
                       answer: _Collected) -> AsyncIterator[Delta]:
        deltas = self._stream(request, sampling, max_tokens, stop, answer)
        worker = ThreadPoolExecutor(1, "dsv4-stream")
        try:
            while (delta := await asyncio.get_running_loop().run_in_executor(worker, next, deltas, None)) is not None:
                yield delta
        finally:
            worker.submit(deltas.close)  # Behind the step that runs.
            worker.shutdown(wait=False)

    def _stream(self, request: bytes, sampling: Sampling | None, max_tokens: int | None, stop: Sequence[str],
                answer: _Collected) -> Generator[Delta, None, None]:
        """Adds each delta to `answer` too, and at the end how it ended."""
        model, out = self._model.handle, c.c_void_p()
        _call("dsv4_render", model, request, c.byref(out))
        prompt, out = _Handle("prompt", out, self._model), c.c_void_p()
        answer.notice = _lib.dsv4_prompt_notice(prompt.handle).decode()
        if answer.notice:
            logging.getLogger("dsv4").warning(answer.notice)
        sampler = self._sampler(sampling, prompt)
        stops = (c.c_char_p * len(stop))(*(text.encode() for text in stop))
        _call("dsv4_parser_new", model, prompt.handle, stops, c.c_size_t(len(stop)), c.byref(out))
        parser = _Handle("parser", out, self._model)
        found: list[Delta] = []

        def add(delta: Any, _: object) -> None:
            found.append(Delta(KINDS[delta[0].kind], c.string_at(delta[0].text, delta[0].text_size).decode(), delta[0].call))
            answer.add(found[-1])

        on_delta = _OnDelta(add)
        count = c.c_size_t()
        address = _lib.dsv4_prompt_ids(prompt.handle, c.byref(count))
        ids = list((c.c_int32 * count.value).from_address(address))
        answer.prompt_tokens = len(ids)
        session = self.session()
        for begin in range(0, len(ids), _PIECE):
            session.append(ids[begin:begin + _PIECE])
        token, done, cut = c.c_int32(), c.c_int32(), True
        for _ in range(self._most(max_tokens)):
            _call("dsv4_sample", sampler.handle, session._session.handle, c.byref(token))
            answer.completion_tokens += 1
            if token.value in self._stops:
                cut = False
                break
            _call("dsv4_parser_feed", parser.handle, c.byref(token), c.c_size_t(1), on_delta, None, c.byref(done))
            yield from found
            found.clear()
            if done.value:
                cut = False
                break
            session.append([token.value])
        answer.finish_reason = "length" if cut else "stop"
        _call("dsv4_parser_finish", parser.handle, int(cut), on_delta, None)
        yield from found
