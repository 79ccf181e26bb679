"""Token ids in, token ids out, for programs that have a front of their own, as Dynamo and Ray Serve have.

A Worker has one thread, which answers all requests in common steps. Sessions of earlier requests are kept, and a prompt that begins like one of
them is read from there. Blocks of the kept prompts are told to whoever routes by them.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from .. import LLM, DSV4Error, Sampling, Session, _Answer, _Row, _Steps
from .._counted import counted

_PIECE = 512  # Tokens of a prompt that are read between two steps of the answers.
MOST_TAKEN_BACK = 64  # Tokens by which a kept session can be taken back.


@dataclass(frozen=True)
class Blocks:
    """Blocks that are kept from now on, each behind the one before; `parent` is the hash in front of the first, None at a text's beginning."""

    hashes: tuple[int, ...]
    parent: int | None
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Output:
    """Tokens that follow; the last output of an answer has a reason: stop, length or cancelled."""

    ids: tuple[int, ...]
    finish_reason: str | None = None
    num_cached: int = 0  # Tokens of the prompt that a kept session had read.


@dataclass(eq=False)
class _Request:
    ids: list[int]
    sampling: Sampling | None
    max_tokens: int
    stops: frozenset[int]
    loop: asyncio.AbstractEventLoop
    outputs: asyncio.Queue[Output | Exception] = field(default_factory=asyncio.Queue)
    cancelled: bool = False
    session: Session | None = None
    answer: _Answer | None = None
    num_cached: int = 0
    num_told: int = 0

    def put(self, item: Output | Exception) -> None:
        try:
            self.loop.call_soon_threadsafe(self.outputs.put_nowait, item)
        except RuntimeError:  # The caller's loop has ended.
            self.cancelled = True


def block_hashes(ids: Sequence[int], block_tokens: int) -> list[int]:
    """A number of 63 bits for each whole block, of all tokens up to its end."""
    hashes, hasher = [], hashlib.blake2b(digest_size=8)
    for begin in range(0, len(ids) - block_tokens + 1, block_tokens):
        hasher.update(b"".join(token.to_bytes(4, "little") for token in ids[begin:begin + block_tokens]))
        hashes.append(int.from_bytes(hasher.copy().digest(), "little") >> 1)
    return hashes


class _Kept:
    """Sessions of earlier requests by their tokens; the least recently used goes first. The worker's thread alone."""

    def __init__(self, most: int, block_tokens: int, on_stored: Callable[[Blocks], None] | None,
                 on_removed: Callable[[tuple[int, ...]], None] | None) -> None:
        self._most, self._block_tokens = most, block_tokens
        self._on_stored, self._on_removed = on_stored, on_removed
        self._sessions: OrderedDict[tuple[int, ...], Session] = OrderedDict()
        self._blocks: Counter[int] = Counter()

    def hashes(self) -> list[int]:
        return sorted(self._blocks)

    def find(self, ids: Sequence[int]) -> Session | None:
        """A copy of the session that shares most with `ids`, whose last token is always read anew."""
        best: tuple[int, tuple[int, ...]] = (0, ())
        for kept in self._sessions:
            common = next((i for i, (one, other) in enumerate(zip(kept, ids, strict=False)) if one != other), min(len(kept), len(ids)))
            common = min(common, len(ids) - 1)
            if len(kept) - common <= MOST_TAKEN_BACK and common > best[0]:
                best = (common, kept)
        if not best[0]:
            return None
        self._sessions.move_to_end(best[1])
        session = self._sessions[best[1]].fork()
        if len(session) > best[0]:
            session.rewind(len(session) - best[0])
        return session

    def keep(self, ids: Sequence[int], session: Session) -> None:
        known = tuple(ids[:len(session)])
        if not self._most or not known:
            return
        if known in self._sessions:
            self._sessions.move_to_end(known)
            return
        self._sessions[known] = session
        hashes = block_hashes(known, self._block_tokens)
        new = next((i for i, each in enumerate(hashes) if not self._blocks[each]), len(hashes))
        self._blocks.update(hashes)
        if new < len(hashes) and self._on_stored:
            begin = new * self._block_tokens
            self._on_stored(Blocks(tuple(hashes[new:]), hashes[new - 1] if new else None, known[begin:len(hashes) * self._block_tokens]))
        while len(self._sessions) > self._most:
            self._remove()

    def _remove(self) -> None:
        known, session = self._sessions.popitem(last=False)
        session.close()
        hashes = block_hashes(known, self._block_tokens)
        self._blocks.subtract(hashes)
        gone = tuple(each for each in reversed(hashes) if not self._blocks[each])
        for each in gone:
            del self._blocks[each]
        if gone and self._on_removed:
            self._on_removed(gone)

    def clear(self) -> None:
        while self._sessions:
            self._remove()


class Worker:
    """Answers requests of token ids. `places` go on together, `keep` sessions are kept for reuse.

    on_stored and on_removed hear of blocks of `block_tokens` tokens of the kept prompts, on the worker's thread, in order.
    """

    def __init__(self, llm: LLM, places: int = 8, keep: int = 8, block_tokens: int = 64,
                 on_stored: Callable[[Blocks], None] | None = None, on_removed: Callable[[tuple[int, ...]], None] | None = None) -> None:
        if places < 1 or keep < 0 or block_tokens < 1:
            raise ValueError(f"Worker: got places {places}, keep {keep}, block_tokens {block_tokens}; wanted 1, 0 and 1 or more")
        self.llm, self._places, self._steps = llm, places, _Steps(places)
        self._kept = _Kept(keep, block_tokens, on_stored, on_removed)
        self._changed = threading.Condition()
        self._inbox: deque[_Request] = deque()
        self._requests: list[_Request] = []  # In order of arrival; the thread's alone.
        self._unfinished = 0
        self._accepts, self._stops = True, False
        self._thread = threading.Thread(target=self._run, name="dsv4-worker", daemon=True)
        self._thread.start()

    async def generate(self, ids: Sequence[int], sampling: Sampling | None = None, max_tokens: int = 1024,
                       stops: Sequence[int] = ()) -> AsyncGenerator[Output, None]:
        """The tokens of an answer as they come, without the one that ends it. To leave the loop, or to cancel the task, ends the answer."""
        wrong = [token for token in ids if not 0 <= token < self.llm.vocab_size]
        if not ids or wrong or max_tokens < 1:
            raise ValueError(f"generate: got {counted(len(ids), 'id')}, {wrong[:3]} out of the vocabulary, max_tokens {max_tokens}; wanted at least one id and token")
        if len(ids) >= self.llm.context_length:
            raise ValueError(f"generate: a prompt of {counted(len(ids), 'token')}, and the context has {self.llm.context_length}")
        request = _Request(list(ids), sampling, min(max_tokens, self.llm.context_length - len(ids)), frozenset(stops), asyncio.get_running_loop())
        with self._changed:
            if not self._accepts:
                raise RuntimeError("generate: the worker is draining; ask another")
            self._unfinished += 1
            self._inbox.append(request)
            self._changed.notify_all()
        try:
            while True:
                output = await request.outputs.get()
                if isinstance(output, Exception):
                    raise output
                yield output
                if output.finish_reason:
                    return
        finally:
            request.cancelled = True

    @property
    def num_unfinished(self) -> int:
        return self._unfinished

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    async def drain(self) -> None:
        """Takes no more requests; returns when those that it has are answered."""
        with self._changed:
            self._accepts = False
        while self._unfinished:
            await asyncio.sleep(0.02)

    def close(self) -> None:
        """Ends what is unfinished as cancelled, and the thread."""
        with self._changed:
            self._accepts, self._stops = False, True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._inbox or self._requests or self._stops):
                    self._changed.wait()
                while self._inbox:
                    self._requests.append(self._inbox.popleft())
                stops = self._stops
            for request in list(self._requests):
                if request.cancelled or stops:
                    self._end(request, Output((), "cancelled"))
            if stops:
                return self._kept.clear()
            current = self._requests[:self._places]
            self._read(current)
            self._decode([request for request in current if request.answer])

    def _read(self, current: list[_Request]) -> None:
        """A piece of the oldest prompt that is not read."""
        request = next((one for one in current if not one.answer), None)
        if request is None:
            return
        try:
            if request.session is None:
                request.session = self._kept.find(request.ids) or self.llm.session()
                request.num_cached = len(request.session)
            begin = len(request.session)
            request.session.append(request.ids[begin:begin + _PIECE])
            if len(request.session) == len(request.ids):
                self._kept.keep(request.ids, request.session.fork())
                request.answer = _Answer(0, request.session, self.llm._sampler(request.sampling, None), [])
        except (DSV4Error, ValueError) as error:
            self._end(request, error)

    def _decode(self, running: list[_Request]) -> None:
        if not running:
            return
        answers = [request.answer for request in running if request.answer]
        rows = (_Row * len(answers))(*(answer.row(request.max_tokens) for request, answer in zip(running, answers, strict=True)))
        try:
            self._steps.run(rows, answers)
        except DSV4Error as error:
            for request in running:
                self._end(request, error)
            return
        for request, answer in zip(running, answers, strict=True):
            ids, reason = answer.ids, None
            stop = next((i for i in range(request.num_told, len(ids)) if ids[i] in request.stops or ids[i] in self.llm._stops), None)
            if stop is not None:
                ids, reason = ids[:stop], "stop"
            elif len(ids) >= request.max_tokens:
                reason = "length"
            output = Output(tuple(ids[request.num_told:]), reason, request.num_cached)
            request.num_told = len(ids)
            if reason:
                if stop is None or len(answer.session) <= len(request.ids) + len(ids):
                    self._kept.keep([*request.ids, *ids], answer.session)
                self._end(request, output)
            elif output.ids:
                request.put(output)

    def _end(self, request: _Request, last: Output | Exception) -> None:
        self._requests.remove(request)
        request.session = request.answer = None
        request.put(last)
        with self._changed:
            self._unfinished -= 1
