"""The worker of python/dsv4/serve: token ids in, token ids out, cancelled, drained, with blocks that its listeners can count on."""

import asyncio
import pathlib
import random
import unittest

import dsv4
from dsv4.serve import Blocks, Worker, block_hashes
from dsv4.serve.dynamo import answer, read_request
from dsv4.serve.ray import TokenServer

TINY = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny"
GREEDY = dsv4.Sampling(temperature=0)


async def collect(worker, ids, **options):
    outputs = [output async for output in worker.generate(ids, **options)]
    return [token for output in outputs for token in output.ids], outputs[-1]


class WorkerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = dsv4.LLM(TINY)

    def alone(self, ids, max_tokens):
        """The answer of one session, without the worker."""
        session, answer = self.llm.session(), []
        session.append(ids)
        while len(answer) < max_tokens:
            row = session.logits()[-1].tolist()
            token = row.index(max(row))
            if token in self.llm._stops:
                break
            answer.append(token)
            session.append([token])
        return answer

    def test_answers_are_those_of_one_session(self):
        dice = random.Random(3)
        stem = [dice.randrange(5, 900) for _ in range(200)]
        prompts = [stem[:dice.randrange(1, 200)] + [dice.randrange(5, 900) for _ in range(dice.randrange(1, 90))] for _ in range(24)]
        expected = [self.alone(ids, 12) for ids in prompts]
        for keep in (0, 6):
            worker = Worker(self.llm, places=5, keep=keep)

            async def run(worker=worker):
                return await asyncio.gather(*(collect(worker, ids, sampling=GREEDY, max_tokens=12) for ids in prompts))
            answers = asyncio.run(run())
            worker.close()
            self.assertEqual([ids for ids, _ in answers], expected)
            for ids, last in answers:
                self.assertEqual(last.finish_reason, "length" if len(ids) == 12 else "stop")
            self.assertEqual(sum(last.num_cached for _, last in answers) > 0, keep > 0)

    def test_a_reader_of_blocks_knows_what_is_kept(self):
        texts, log = {}, []

        def stored(blocks: Blocks):
            text = () if blocks.parent is None else texts[blocks.parent]
            for index, each in enumerate(blocks.hashes):
                text = (*text, *blocks.ids[16 * index:16 * (index + 1)])
                self.assertNotIn(each, texts)
                texts[each] = text
            log.append("stored")

        def removed(hashes):
            for each in hashes:
                del texts[each]
            log.append("removed")
        worker = Worker(self.llm, keep=4, block_tokens=16, on_stored=stored, on_removed=removed)
        dice = random.Random(4)

        async def run():
            for _ in range(40):
                ids = [dice.choice((7, 8))] * dice.randrange(1, 60) + [dice.randrange(5, 900) for _ in range(dice.randrange(0, 60))]
                await collect(worker, ids, sampling=GREEDY, max_tokens=2)
                self.assertEqual(sorted(texts), worker._kept.hashes())
        asyncio.run(run())
        self.assertEqual(set(log), {"stored", "removed"})
        for each, text in texts.items():
            self.assertEqual(block_hashes(text, 16)[-1], each)
        worker.close()
        self.assertEqual(texts, {})

    def test_cancel_and_drain(self):
        worker = Worker(self.llm, places=2)

        async def run():
            async for output in worker.generate([5, 6, 7], GREEDY, 2000):
                self.assertTrue(output.ids or output.finish_reason)
                break  # The caller leaves.
            task = asyncio.create_task(collect(worker, [5, 6, 8], sampling=dsv4.Sampling(seed=1), max_tokens=2000))
            await asyncio.sleep(0.05)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            last = asyncio.create_task(collect(worker, [5, 6, 9], sampling=GREEDY, max_tokens=30))
            await asyncio.sleep(0.01)
            await worker.drain()
            self.assertIn((await last)[1].finish_reason, ("length", "stop"))
            with self.assertRaisesRegex(RuntimeError, "draining"):
                await collect(worker, [5])
        asyncio.run(run())
        self.assertEqual(worker.num_unfinished, 0)
        worker.close()

    def test_stops_and_what_is_wrong(self):
        worker = Worker(self.llm)
        expected = self.alone([5, 6, 7, 8], 10)
        stop = next(token for token in expected if token not in expected[:1])

        async def run():
            ids, last = await collect(worker, [5, 6, 7, 8], sampling=GREEDY, max_tokens=10, stops=[stop])
            self.assertEqual((ids, last.finish_reason), (expected[:expected.index(stop)], "stop"))
            for bad in ([], [-1], [self.llm.vocab_size]):
                with self.assertRaises(ValueError):
                    await collect(worker, bad)
            with self.assertRaisesRegex(Exception, "temperature"):
                await collect(worker, [5], sampling=dsv4.Sampling(temperature=-1))
            self.assertEqual((await collect(worker, [5, 6, 7, 8], sampling=GREEDY, max_tokens=10))[0], expected)
        asyncio.run(run())
        worker.close()
        with self.assertRaises(ValueError):
            Worker(self.llm, places=0)

    def test_dynamos_requests_and_outputs(self):
        class Context:
            def __init__(self, seconds):
                self.seconds = seconds

            def async_killed_or_stopped(self):
                return asyncio.sleep(self.seconds)
        worker = Worker(self.llm)
        request = {"token_ids": [5, 6, 7, 8], "sampling_options": {"temperature": 0, "n": 1, "top_k": -1}, "stop_conditions": {"max_tokens": 10, "stop": None}}

        async def run(seconds, asked):
            return [output async for output in answer(worker, asked, Context(seconds))]
        outputs = asyncio.run(run(1000, request))
        self.assertEqual([token for output in outputs for token in output["token_ids"]], self.alone([5, 6, 7, 8], 10))
        self.assertEqual([output.get("finish_reason") for output in outputs][-1], "length")
        endless = {**request, "sampling_options": {"seed": 3}, "stop_conditions": {"max_tokens": 4000}}
        self.assertEqual(asyncio.run(run(0.1, endless))[-1], {"token_ids": [], "finish_reason": "cancelled"})
        for part, name, value in (("sampling_options", "n", 2), ("stop_conditions", "min_tokens", 3), ("output_options", "logprobs", 1),
                                  ("sampling_options", "guided_decoding", {"whitespace_pattern": "x"})):
            with self.assertRaisesRegex(ValueError, name):
                read_request({**request, part: {name: value}})
        self.assertEqual(read_request({**request, "sampling_options": {"guided_decoding": {"regex": "a+"}}})["sampling"].regex, "a+")
        worker.close()

    def test_the_class_for_ray_serve(self):
        server = TokenServer(TINY, block_tokens=16)

        async def run():
            outputs = [output async for output in server.generate([5, 6, 7, 8], {"temperature": 0}, max_tokens=10)]
            self.assertEqual([token for output in outputs for token in output["ids"]], self.alone([5, 6, 7, 8], 10))
            long = [output async for output in server.generate(list(range(300, 400)), {"temperature": 0}, max_tokens=2)]
            again = [output async for output in server.generate(list(range(300, 400)), {"temperature": 0}, max_tokens=2)]
            self.assertEqual((long[-1]["num_cached"], again[-1]["num_cached"]), (0, 99))
            (number, event), = await server.kv_events()
            self.assertEqual((number, event["ids"], event["parent"]), (0, list(range(300, 396)), None))
            self.assertEqual(await server.kv_events(1), [])
            await server.check_health()
            await server.drain()
            server._worker.close()
            with self.assertRaisesRegex(RuntimeError, "draining"):
                [output async for output in server.generate([5])]
            with self.assertRaisesRegex(RuntimeError, "has ended"):
                await server.check_health()
        asyncio.run(run())


if __name__ == "__main__":
    unittest.main()
