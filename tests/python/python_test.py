"""The Python package on models/tiny: DSV4_LIBRARY names libdsv4.so, DSV4_BINARY the command."""

import os
import subprocess
import threading
import unittest

import dsv4

QUESTION = "What is the capital of France?"
GREEDY = dsv4.Sampling(temperature=0)


class PythonTest(unittest.TestCase):
    """One model for all."""

    @classmethod
    def setUpClass(cls):
        cls.llm = dsv4.LLM("models/tiny")

    def ask(self, question):
        return self.llm.chat([{"role": "user", "content": question}], sampling=GREEDY, max_tokens=64, thinking_mode="chat")

    def test_greedy_text_is_that_of_run(self):
        run = subprocess.run([os.environ["DSV4_BINARY"], "run", "-q", "--thinking-mode", "chat", "--temperature", "0",
                              "--max-tokens", "64", QUESTION], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             check=True)
        self.assertEqual(self.ask(QUESTION).strip(), run.stdout.strip())

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

    def test_the_documents_example(self):
        with open("docs/python.md", encoding="utf-8") as file:
            example = file.read().split("```python\n")[1].split("```")[0]
        exec(compile(example, "docs/python.md", "exec"), {})  # noqa: S102


if __name__ == "__main__":
    unittest.main()
