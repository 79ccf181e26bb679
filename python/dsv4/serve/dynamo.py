"""A worker of NVIDIA Dynamo (package ai-dynamo-runtime): `python -m dsv4.serve.dynamo MODEL`.

The front of Dynamo renders and tokenizes; it sends token ids, and gets token ids back. Where etcd, or what stands for it, is found say Dynamo's own
variables: DYN_DISCOVERY_BACKEND (etcd, kubernetes, file, mem) and DYN_REQUEST_PLANE.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from .. import LLM, Sampling
from . import Blocks, Worker

# Fields of a request that this worker cannot serve; with such a value it is refused.
_NEUTRAL: dict[str, tuple[Any, ...]] = {"n": (None, 1), "best_of": (None, 1), "use_beam_search": (None, False), "length_penalty": (None, 1, 1.0),
                                        "min_tokens": (None, 0), "ignore_eos": (None, False), "stop": (None, []), "logprobs": (None,),
                                        "prompt_logprobs": (None,), "max_thinking_tokens": (None,)}
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty")
_GUIDED = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar", "structural_tag": "structural_tag"}


def read_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of Worker.generate, from Dynamo's preprocessed request."""
    options, conditions = request.get("sampling_options") or {}, request.get("stop_conditions") or {}
    for part in (options, conditions, request.get("output_options") or {}):
        for name, value in part.items():
            if name in _NEUTRAL and value not in _NEUTRAL[name]:
                raise ValueError(f"{name}: got {value!r}, which this worker does not do")
    sampling = {name: options[name] for name in _SAMPLING if options.get(name) is not None}
    if sampling.get("top_k") == -1:
        sampling["top_k"] = 0
    for name, value in (options.get("guided_decoding") or {}).items():
        if value is None:
            continue
        if name not in _GUIDED:
            raise ValueError(f"guided_decoding.{name}: not known here, wanted one of {', '.join(_GUIDED)}")
        sampling[_GUIDED[name]] = value
    stops = [*(conditions.get("stop_token_ids") or ()), *(conditions.get("stop_token_ids_hidden") or ())]
    return {"ids": request["token_ids"], "sampling": Sampling(**sampling), "max_tokens": conditions.get("max_tokens") or 1024, "stops": stops}


async def answer(worker: Worker, request: Mapping[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
    """Dynamo's outputs; the client's leaving ends the answer."""
    outputs = worker.generate(**read_request(request))
    gone = asyncio.ensure_future(context.async_killed_or_stopped()) if context is not None else None
    try:
        while True:
            coming = asyncio.ensure_future(outputs.__anext__())
            await asyncio.wait([coming, *([gone] if gone else [])], return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                await asyncio.wait([coming])
                yield {"token_ids": [], "finish_reason": "cancelled"}
                return
            output = coming.result()
            yield {"token_ids": list(output.ids), **({"finish_reason": output.finish_reason} if output.finish_reason else {})}
            if output.finish_reason:
                return
    finally:
        if gone:
            gone.cancel()
        await outputs.aclose()


async def serve(model: str, path: str, name: str | None, places: int, keep: int, block_tokens: int, backend: str) -> None:
    try:
        front: Any = importlib.import_module("dynamo.llm")
        runtimes: Any = importlib.import_module("dynamo.runtime")
    except ImportError as error:
        raise SystemExit(f"dsv4.serve.dynamo: {error}; wanted the package ai-dynamo-runtime") from None
    loop = asyncio.get_running_loop()
    runtime = runtimes.DistributedRuntime(loop, os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"), os.environ.get("DYN_REQUEST_PLANE", "tcp"))
    endpoint = runtime.endpoint(path)
    llm = await asyncio.to_thread(LLM, model, backend)
    events = front.KvEventPublisher(endpoint, kv_block_size=block_tokens)

    def stored(blocks: Blocks) -> None:
        events.publish_stored(list(blocks.ids), [block_tokens] * len(blocks.hashes), list(blocks.hashes), blocks.parent)

    worker = Worker(llm, places, keep, block_tokens, stored, lambda hashes: events.publish_removed(list(hashes)))

    async def handler(request: Mapping[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        async for output in answer(worker, request, context):
            yield output

    async def leave() -> None:
        await worker.drain()
        runtime.shutdown()

    leaving: list[asyncio.Task[None]] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: leaving.append(loop.create_task(leave())))
    # Chats are rendered by a Jinja template, which the model has none of; the front asks for texts.
    await front.register_model(front.ModelInput.Tokens, front.ModelType.Completions, endpoint, model, name or Path(model).name,
                               worker_type=front.WorkerType.Aggregated, kv_cache_block_size=block_tokens)
    try:
        await endpoint.serve_endpoint(handler, graceful_shutdown=True)
    finally:
        await asyncio.to_thread(worker.close)
        events.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dsv4.serve.dynamo", description=__doc__)
    parser.add_argument("model", help="a directory with config.json, tokenizer.json and weights")
    parser.add_argument("--endpoint", default="dynamo.backend.generate", help="NAMESPACE.COMPONENT.ENDPOINT")
    parser.add_argument("--name", help="of the model, in front of clients (default: the directory's)")
    parser.add_argument("--places", type=int, default=8, help="answers at one time")
    parser.add_argument("--keep", type=int, default=8, help="sessions that are kept for reuse")
    parser.add_argument("--block-tokens", type=int, default=64, help="of a block of KV events")
    parser.add_argument("--backend", default="auto", help="auto, cuda or cpu")
    given = parser.parse_args()
    asyncio.run(serve(given.model, given.endpoint, given.name, given.places, given.keep, given.block_tokens, given.backend))


if __name__ == "__main__":
    main()
