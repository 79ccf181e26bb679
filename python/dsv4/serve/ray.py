"""A class for Ray Serve: token ids in, token ids out.

    from ray import serve
    from dsv4.serve.ray import TokenServer

    handle = serve.run(serve.deployment(TokenServer).bind("models/tiny"))
    for output in handle.options(stream=True).generate.remote([5, 6, 7], max_tokens=20):
        print(output["ids"], output["finish_reason"])

Ray Serve itself cancels what its callers leave, and drains a replica before it ends it (graceful_shutdown_timeout_s); check_health and
reconfigure are its own names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from .. import LLM, Sampling
from . import Blocks, Worker


class TokenServer:
    """A replica. `sampling` of generate is a dict of dsv4.Sampling's members."""

    def __init__(self, model: str, backend: str = "auto", places: int = 8, keep: int = 8, block_tokens: int = 64) -> None:
        # The latest changes of what is kept, for a router that asks: (number, what).
        self._events: deque[tuple[int, dict[str, Any]]] = deque(maxlen=10_000)
        self._num_events = 0
        self._worker = Worker(LLM(model, backend), places, keep, block_tokens, self._stored, lambda hashes: self._note({"removed": list(hashes)}))

    def _note(self, event: dict[str, Any]) -> None:
        self._events.append((self._num_events, event))
        self._num_events += 1

    def _stored(self, blocks: Blocks) -> None:
        self._note({"stored": list(blocks.hashes), "parent": blocks.parent, "ids": list(blocks.ids)})

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any] | None = None, max_tokens: int = 1024,
                       stops: Sequence[int] = ()) -> AsyncIterator[dict[str, Any]]:
        """Outputs as they come: ids, finish_reason (None until the last), num_cached."""
        async for output in self._worker.generate(ids, Sampling(**(sampling or {})), max_tokens, stops):
            yield {"ids": list(output.ids), "finish_reason": output.finish_reason, "num_cached": output.num_cached}

    async def kv_events(self, begin: int = 0) -> list[tuple[int, dict[str, Any]]]:
        """Changes of the kept blocks from the number `begin` on. A reader whose number is not there any more forgets what it knows."""
        return [(number, event) for number, event in list(self._events) if number >= begin]

    async def num_unfinished(self) -> int:
        return self._worker.num_unfinished

    async def check_health(self) -> None:
        if not self._worker.is_alive:
            raise RuntimeError("the worker's thread has ended")

    async def drain(self) -> None:
        await self._worker.drain()

    def __del__(self) -> None:
        # Ray Serve calls it when the replica ends, behind the answers that it waits for.
        if worker := getattr(self, "_worker", None):
            worker.close()
