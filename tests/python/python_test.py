"""The Python package on models/tiny: DSV4_LIBRARY names libdsv4.so, DSV4_BINARY the command."""

import asyncio
import gc
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from xml.etree import ElementTree

import dsv4
from dsv4 import plot

QUESTION = "What is the capital of France?"
GREEDY = dsv4.Sampling(temperature=0)


class PythonTest(unittest.TestCase):
    """One model for all."""

    @classmethod
    def setUpClass(cls):
        cls.llm = dsv4.LLM("models/tiny")

    def ask(self, question):
        return self.llm.chat([{"role": "user", "content": question}], sampling=GREEDY, max_tokens=64, thinking_mode="chat")

    def test_an_answer_knows_what_belongs_to_it(self):
        answer = self.llm.chat(QUESTION, sampling=GREEDY, max_tokens=64)
        self.assertIn("Paris", answer.text)
        self.assertEqual(answer, answer.text)
        self.assertTrue(answer.reasoning)
        self.assertEqual((answer.finish_reason, answer.tool_calls), ("stop", []))
        self.assertGreater(answer.prompt_tokens, 4)
        self.assertGreater(answer.completion_tokens, 4)
        cut = self.llm.chat(QUESTION, sampling=GREEDY, max_tokens=2)
        self.assertEqual((cut.finish_reason, cut.completion_tokens), ("length", 2))
        tool = {"type": "function", "function": {"name": "search_ticket", "description": "Search a ticket.", "parameters": {
            "type": "object", "properties": {"tags": {"type": "array", "description": "List of tags", "items": {"type": "string"}},
                                             "color": {"type": "string", "description": "Colour"}}, "required": ["tags", "color"]}}}
        calls = self.llm.chat("Search a ticket with tags cook, color golden, please.", tools=[tool], sampling=GREEDY, thinking_mode="chat", max_tokens=200)
        self.assertEqual(calls.finish_reason, "tool_calls")
        self.assertEqual([call.name for call in calls.tool_calls], ["search_ticket"])
        self.assertEqual(json.loads(calls.tool_calls[0].arguments)["color"], "golden")
        for value in (answer, cut, calls, self.llm, self.llm.session(), GREEDY, plot.Plot("x" * 10000)):
            self.assertLess(len(repr(value)), 250)
            self.assertNotIn("\n", repr(value))
        with self.assertRaises(TypeError):
            self.llm.chat(QUESTION, temprature=0)

    def test_the_model_s_notice_and_its_limit(self):
        with self.assertLogs("dsv4", "WARNING") as log:
            answer = self.llm.chat("Was ist die Hauptstadt von Frankreich?", sampling=GREEDY, max_tokens=4)
        self.assertIn("knows simple English alone", answer.notice)
        self.assertEqual([record.getMessage() for record in log.records], [answer.notice])
        with self.assertNoLogs("dsv4"):
            self.assertEqual(self.llm.chat(QUESTION, sampling=GREEDY).notice, "")
        config = json.loads(pathlib.Path("models/tiny/generation_config.json").read_text())
        token = self.llm.tokenize(" house")[-1]
        text = self.llm.generate([" house" * 3], dsv4.Sampling(grammar='root ::= " house"{2000}', temperature=0))[0]
        self.assertEqual(self.llm.tokenize(text), [token] * config["max_new_tokens"])

    def test_with_gives_the_memory_back(self):
        with dsv4.LLM("models/tiny") as llm, llm.session() as session:
            session.append([1, 2, 3])
        self.assertIn("closed", repr(llm))
        for call in (lambda: llm.tokenize("a"), lambda: session.append([1]), lambda: len(session)):
            with self.assertRaisesRegex(ValueError, "closed"):
                call()

    def test_a_circle_of_objects_is_collected_in_any_order(self):
        for turned in (False, True):
            llm = dsv4.LLM("models/tiny")
            session = llm.session()
            session.append(llm.tokenize(QUESTION))
            circle = [session, llm] if turned else [llm, session]
            circle.append(circle)
            del llm, session, circle
            gc.collect()

    def test_without_its_library_it_says_what_to_do(self):
        for library in ("/no/such/libdsv4.so", "/usr/lib/x86_64-linux-gnu/libm.so.6"):
            process = subprocess.run([sys.executable, "-c", "import dsv4"], env={**os.environ, "DSV4_LIBRARY": library}, capture_output=True, text=True,
                                     check=False)
            last = process.stderr.strip().splitlines()[-1]
            self.assertRegex(last, f"ImportError: dsv4 cannot load its library, DSV4_LIBRARY={library}.*pip install")
            self.assertNotIn("OSError", process.stderr)
        with tempfile.TemporaryDirectory() as folder:  # A package alone asks the system for the library of its ABI.
            shutil.copytree(pathlib.Path(dsv4.__file__).parent, f"{folder}/a/b/dsv4", ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
            environment = {name: value for name, value in os.environ.items() if name != "DSV4_LIBRARY"} | {"PYTHONPATH": f"{folder}/a/b"}
            process = subprocess.run([sys.executable, "-c", "import dsv4"], env=environment, capture_output=True, text=True, check=False)
            self.assertIn(f"libdsv4.so.{dsv4.ABI} of the system", process.stderr)

    def test_it_says_what_it_runs_on(self):
        self.assertRegex(self.llm.backend, r"^(cpu|cuda) \(.+\)$")
        self.assertEqual(dsv4.LLM("models/tiny", backend="reference").backend, "reference")

    def test_greedy_text_is_that_of_run(self):
        run = subprocess.run([os.environ["DSV4_BINARY"], "run", "-q", "--thinking-mode", "chat", "--temperature", "0",
                              "--max-tokens", "64", QUESTION], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             check=True)
        self.assertEqual(self.ask(QUESTION).strip(), run.stdout.strip())

    def test_a_hundred_greedy_texts_are_those_of_run(self):
        prompts = [f"{words} {number}" for number in range(20) for words in
                   ("The capital of France is", "Tell me a story about", "北京 und Köln", "def f(x): return", "1 + 1 =")]
        texts = self.llm.generate(prompts, GREEDY, max_tokens=12)
        for prompt, text in zip(prompts, texts, strict=True):
            run = subprocess.run([os.environ["DSV4_BINARY"], "run", "-q", "--raw", "--temperature", "0", "--max-tokens", "12", prompt],
                                 stdin=subprocess.DEVNULL, capture_output=True, check=True)
            self.assertEqual(text.strip(), run.stdout.decode(errors="replace").strip(), prompt)

    def test_async(self):
        messages = [{"role": "user", "content": QUESTION}]
        options = {"sampling": GREEDY, "max_tokens": 64, "thinking_mode": "chat"}

        async def both():
            return await asyncio.gather(self.llm.achat(messages, **options), self.llm.achat(messages, **options),
                                        self.llm.agenerate([QUESTION], GREEDY, max_tokens=8))
        first, second, text = asyncio.run(both())
        self.assertEqual([first, second], [self.ask(QUESTION)] * 2)
        self.assertEqual(text, self.llm.generate([QUESTION], GREEDY, max_tokens=8))

    def test_a_cancelled_task_ends_its_answer(self):
        async def cancelled():
            task = asyncio.create_task(self.llm.agenerate([QUESTION] * 1000, dsv4.Sampling(), max_tokens=500))
            await asyncio.sleep(0.2)
            task.cancel()
            begin = time.monotonic()
            with self.assertRaises(asyncio.CancelledError):
                await task
            return begin
        begin = asyncio.run(cancelled())  # Waits for the threads that it started.
        print(f"ended {time.monotonic() - begin:.2f} s after it was cancelled")
        self.assertLess(time.monotonic() - begin, 60)

    def test_keyboard_interrupt_ends_an_answer(self):
        import _thread
        timer = threading.Timer(0.3, _thread.interrupt_main)
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            self.llm.generate([QUESTION] * 1000, max_tokens=500)
        timer.join()
        self.assertIn("Paris", self.ask(QUESTION))

    def test_what_the_content_has_to_be(self):
        for rule in ({"json_schema": {"enum": ["red", "green"]}}, {"regex": "red|green"}, {"choice": ["red", "green"]},
                     {"grammar": 'root ::= "red" | "green"'}):
            text = self.llm.chat([{"role": "user", "content": QUESTION}], sampling=dsv4.Sampling(**rule), thinking_mode="chat")
            self.assertIn(text.strip('"'), ("red", "green"), rule)
        with self.assertRaisesRegex(ValueError, "regex and choice"):
            self.llm.chat([{"role": "user", "content": QUESTION}], sampling=dsv4.Sampling(regex="a", choice=["b"]))

    def test_seeds(self):
        def text(seed):
            return self.llm.generate(["Tell me a story about"], dsv4.Sampling(temperature=1.5, seed=seed), max_tokens=20)
        self.assertEqual(text(3), text(3))
        self.assertGreater(len({str(text(None)) for _ in range(4)}), 1)

    def test_a_load_can_be_ended(self):
        calls = []

        def stop(done, total):
            calls.append((done, total))
            raise KeyboardInterrupt
        with self.assertRaises(KeyboardInterrupt):
            dsv4.LLM("models/tiny", on_progress=stop)
        self.assertEqual(len(calls), 1)
        self.assertGreater(calls[0][1], 1)

    def test_snapshots(self):
        ids = self.llm.tokenize(QUESTION)
        session, other = self.llm.session(), self.llm.session()
        session.append(ids[:-1])
        other.restore(session.snapshot())
        for one in (session, other):
            one.append(ids[-1:])
        self.assertEqual(other.logits()[-1].tobytes(), session.logits()[-1].tobytes())

    def test_threads_stream_at_once(self):
        wanted, got = self.ask(QUESTION), []
        threads = [threading.Thread(target=lambda: got.append(self.ask(QUESTION))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(got, [wanted] * 8)

    def test_sessions(self):
        ids = self.llm.tokenize(QUESTION)
        self.assertEqual(self.llm.detokenize(ids), QUESTION)
        session = self.llm.session()
        session.append(ids[:-1])
        fork = session.fork()
        session.append(ids[-1:])
        fork.append([ids[0]])
        fork.rewind(1)
        fork.append(ids[-1:])
        self.assertEqual(fork.logits()[-1].tobytes(), session.logits()[-1].tobytes())
        self.assertEqual(len(self.llm.logits(ids)), len(ids))

    def test_errors_and_schema(self):
        with self.assertRaisesRegex(dsv4.DSV4Error, "nowhere"):
            dsv4.LLM("nowhere")
        schema = dsv4.Sampling(temperature=0, json_schema='{"enum": ["red", "green"]}')
        self.assertIn(self.llm.chat([{"role": "user", "content": "Hello"}], sampling=schema, thinking_mode="chat"),
                      ('"red"', '"green"'))

    def test_the_documents_examples(self):
        with open("docs/python.md", encoding="utf-8") as file:
            examples = [part.split("```")[0] for part in file.read().split("```python\n")[1:]]
        self.assertEqual(len(examples), 2)
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(os.environ["DSV4_BINARY"], f"{folder}/dsv4")
            for example in examples:
                written = re.sub(r'save\("', f'save("{folder}/', example)
                with unittest.mock.patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"):
                    exec(compile(written, "docs/python.md", "exec"), {})  # noqa: S102
            for name in ("bench", "residual"):
                ElementTree.parse(f"{folder}/{name}.svg")

    def test_plots(self):
        row = {"backend": "cpu", "depth": 128, "batch": 4, "tokens": 4, "tokens_per_second": 20.0, "read_percent": 70.2, "multiply_add_percent": 3.0}
        rows = [row | {"kind": "prefill", "tokens": 64, "tokens_per_second": 40.0}, row | {"kind": "decode"}]
        svg = ElementTree.fromstring(plot.bench({"model": "a/<b>", "layers": 3, "rows": rows}))
        texts = [node.text for node in svg.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("<b>, 3 layers: tokens a second (share of the machine's rates)", texts)
        self.assertIn("cpu decode, batch 4, depth 128", texts)
        self.assertIn("20 (70 %)", texts)
        widths = [float(node.get("width")) for node in svg.iter("{http://www.w3.org/2000/svg}rect") if node.get("x")]
        self.assertEqual(widths[0], 2 * widths[1])
        with self.assertRaisesRegex(ValueError, "no rows"):
            plot.bench({"rows": []})
        table = {"title": "t", "columns": ["layer", "stream", "RMS"], "rows": [["0", "0", "1"], ["0", "1", "9"], ["1", "0", "3"], ["2", "0", "none"]]}
        line = ElementTree.fromstring(plot.table(table, "layer", ["RMS"], {"stream": "0"})).find("{http://www.w3.org/2000/svg}polyline")
        # Two rows with numbers; 1 of at most 3 is a third of the way up.
        self.assertEqual(line.get("points"), "60.0,190.0 700.0,50.0")
        for columns, where in ((["size"], {}), (["RMS"], {"stream": "7"})):
            with self.assertRaisesRegex(ValueError, r"no column 'size', there are layer, stream, RMS|no numbers in RMS of the rows that were chosen \(0\)"):
                plot.table(table, "layer", columns, where)


if __name__ == "__main__":
    unittest.main()
