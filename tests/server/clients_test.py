"""The real `openai` and `anthropic` Python clients against `dsv4 serve`: sync, async, streams, tools, errors.

Wants the packages of requirements.txt beside this file, in .venv (./dev venv tests/server/requirements.txt); exits with 77 without them.
"""

import asyncio
import json
import pathlib
import ssl
import tempfile
import unittest

from dsv4_process import rerun_in_venv

try:
    import anthropic
    import openai
except ImportError:
    rerun_in_venv("tests/server/requirements.txt")

import httpx2

from server_process import Server
from tls_test import make_certificate

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TICKET_QUESTION = [{"role": "user", "content": "Search a ticket with tags cook, color golden, please."}]
SCHEMA = {"type": "object", "properties": {"tags": {"type": "array", "description": "List of tags", "items": {"type": "string"}},
                                           "color": {"type": "string", "description": "Colour"}}, "required": ["tags", "color"]}
CHAT_TOOL = {"type": "function", "function": {"name": "search_ticket", "description": "Search a ticket.", "parameters": SCHEMA}}
FLAT_TOOL = {"type": "function", "name": "search_ticket", "description": "Search a ticket.", "parameters": SCHEMA, "strict": False}
ANTHROPIC_TOOL = {"name": "search_ticket", "description": "Search a ticket.", "input_schema": SCHEMA}
NO_THINKING = {"thinking": False}


def setUpModule():
    global server
    server = Server("--max-sequences", 16, "--context", 4096)


def tearDownModule():
    server.__exit__()


class OpenAi(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        self.model = self.client.models.list().data[0].id

    def tearDown(self):
        self.client.close()

    def create(self, **fields):
        return self.client.chat.completions.create(**{"model": self.model, "messages": QUESTION, "temperature": 0, **fields})

    def test_chat(self):
        reply = self.create()
        self.assertIn("Paris", reply.choices[0].message.content)
        self.assertTrue(reply.choices[0].message.reasoning_content)
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertGreater(reply.usage.completion_tokens_details.reasoning_tokens, 0)
        self.assertEqual(self.client.models.retrieve(self.model).id, self.model)

    def test_a_stream_adds_up(self):
        whole = self.create()
        content, reasoning, usage = "", "", None
        for chunk in self.create(stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                content += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        self.assertEqual(content, whole.choices[0].message.content)
        self.assertEqual(reasoning, whole.choices[0].message.reasoning_content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_the_stream_helper_with_tools(self):
        with self.client.chat.completions.stream(model=self.model, messages=TICKET_QUESTION, tools=[CHAT_TOOL], temperature=0,
                                                 extra_body=NO_THINKING) as stream:
            final = stream.get_final_completion()
        call = final.choices[0].message.tool_calls[0]
        self.assertEqual((call.function.name, set(json.loads(call.function.arguments))), ("search_ticket", {"tags", "color"}))

    def test_tools_round_trip(self):
        first = self.create(messages=TICKET_QUESTION, tools=[CHAT_TOOL], extra_body=NO_THINKING)
        self.assertEqual(first.choices[0].finish_reason, "tool_calls")
        call = first.choices[0].message.tool_calls[0]
        second = self.create(tools=[CHAT_TOOL], extra_body=NO_THINKING, messages=[
            *TICKET_QUESTION, first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "rain, 12 degrees"}])
        self.assertTrue(second.choices[0].message.content)
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, first.usage.prompt_tokens - 1)

    def test_async_and_in_parallel(self):
        async def ask():
            async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as client:
                async def one(country):
                    text = ""
                    async for chunk in await client.chat.completions.create(
                            model=self.model, temperature=0, stream=True, extra_body=NO_THINKING,
                            messages=[{"role": "user", "content": f"What is the capital of {country}?"}]):
                        text += chunk.choices[0].delta.content or ""
                    return text
                return await asyncio.gather(*map(one, ("France", "Spain", "Italy", "Japan")))
        for city, text in zip(("Paris", "Madrid", "Rome", "Tokyo"), asyncio.run(ask()), strict=True):
            self.assertIn(city, text)

    def test_leaving_a_stream_early(self):
        stream = self.create(stream=True, max_tokens=1000)
        next(iter(stream))
        stream.close()
        self.assertIn("Paris", self.create().choices[0].message.content)

    def test_completions_and_logprobs(self):
        reply = self.client.completions.create(model=self.model, prompt="The capital of France is", max_tokens=3, temperature=0, logprobs=2)
        self.assertIn("Paris", reply.choices[0].text)
        self.assertEqual(len(reply.choices[0].logprobs.tokens), 3)
        chat = self.create(logprobs=True, top_logprobs=2, n=2)
        self.assertEqual(len(chat.choices), 2)
        self.assertEqual(len(chat.choices[1].logprobs.content[0].top_logprobs), 2)

    def test_responses(self):
        reply = self.client.responses.create(model=self.model, input="What is the capital of France?", temperature=0)
        self.assertEqual(reply.status, "completed")
        self.assertIn("Paris", reply.output_text)
        self.assertEqual([item.type for item in reply.output], ["reasoning", "message"])
        with self.client.responses.stream(model=self.model, input="What is the capital of France?", temperature=0) as stream:
            final = stream.get_final_response()
        self.assertEqual(final.output_text, reply.output_text)

    def test_responses_tools_round_trip(self):
        items = list(TICKET_QUESTION)
        first = self.client.responses.create(model=self.model, input=items, tools=[FLAT_TOOL], temperature=0, extra_body=NO_THINKING)
        call = first.output[-1]
        self.assertEqual((call.type, call.name, set(json.loads(call.arguments))), ("function_call", "search_ticket", {"tags", "color"}))
        items += first.output
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
        second = self.client.responses.create(model=self.model, input=items, tools=[FLAT_TOOL], temperature=0, extra_body=NO_THINKING)
        self.assertTrue(second.output_text)
        self.assertGreater(second.usage.input_tokens_details.cached_tokens, first.usage.input_tokens - 1)

    def test_errors_are_the_clients_exceptions(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(messages=[{"role": "user", "content": "word " * 20000}])
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError):
            self.create(model="another")
        with Server("--api-key", "secret") as locked:
            with openai.OpenAI(base_url=locked.url + "/v1", api_key="wrong", max_retries=0) as client, self.assertRaises(openai.AuthenticationError):
                client.models.list()
            with openai.OpenAI(base_url=locked.url + "/v1", api_key="secret", max_retries=0) as client:
                self.assertEqual(len(client.models.list().data), 1)


class Anthropic(unittest.TestCase):
    def setUp(self):
        self.client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)

    def tearDown(self):
        self.client.close()

    @staticmethod
    def fields(**fields):
        return {"model": server.model, "max_tokens": 200, "messages": QUESTION, "extra_body": {"temperature": 0}, **fields}

    def test_messages(self):
        reply = self.client.messages.create(**self.fields())
        self.assertEqual([block.type for block in reply.content], ["thinking", "text"])
        self.assertIn("Paris", reply.content[1].text)
        self.assertEqual(reply.stop_reason, "end_turn")
        count = self.client.messages.count_tokens(model=server.model, messages=QUESTION).input_tokens
        self.assertEqual(reply.usage.input_tokens + reply.usage.cache_read_input_tokens, count)

    def test_a_stream_adds_up(self):
        whole = self.client.messages.create(**self.fields())
        with self.client.messages.stream(**self.fields()) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[1].text)
        self.assertEqual(final.content[0].thinking, whole.content[0].thinking)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_tools_round_trip(self):
        fields = self.fields(messages=TICKET_QUESTION, tools=[ANTHROPIC_TOOL], thinking={"type": "disabled"})
        with self.client.messages.stream(**fields) as stream:
            first = stream.get_final_message()
        call = first.content[-1]
        self.assertEqual((first.stop_reason, call.name, set(call.input)), ("tool_use", "search_ticket", {"tags", "color"}))
        turns = [*TICKET_QUESTION, {"role": "assistant", "content": first.content},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]}]
        second = self.client.messages.create(**{**fields, "messages": turns})
        self.assertEqual(second.content[0].type, "text")
        self.assertGreater(second.usage.cache_read_input_tokens, 0)

    def test_async(self):
        async def ask():
            async with (anthropic.AsyncAnthropic(base_url=server.url, api_key="none") as client,
                        client.messages.stream(**self.fields()) as stream):
                return await stream.get_final_text()
        self.assertIn("Paris", asyncio.run(ask()))

    def test_errors_are_the_clients_exceptions(self):
        with self.assertRaises(anthropic.BadRequestError):
            self.client.messages.create(**self.fields(extra_body={"temperature": -1}))
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(**self.fields(model="another"))


class OverTls(unittest.TestCase):
    def test_both_clients_trust_the_certificate_they_are_given(self):
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = make_certificate(pathlib.Path(folder), "server")
            with Server("--tls-certificate", certificate, "--tls-key", key, "--context", 4096) as secure, \
                 httpx2.Client(verify=ssl.create_default_context(cafile=certificate)) as transport:
                client = openai.OpenAI(base_url=f"{secure.url}/v1", api_key="none", http_client=transport)
                stream = client.chat.completions.create(model=secure.model, stream=True, temperature=0, messages=QUESTION, extra_body=NO_THINKING)
                self.assertIn("Paris", "".join(chunk.choices[0].delta.content or "" for chunk in stream))
                client = anthropic.Anthropic(base_url=secure.url, api_key="none", http_client=transport)
                with client.messages.stream(model=secure.model, max_tokens=100, extra_body={"temperature": 0}, messages=QUESTION) as stream:
                    self.assertIn("Paris", stream.get_final_text())
                distrustful = openai.OpenAI(base_url=f"{secure.url}/v1", api_key="none", max_retries=0)
                with self.assertRaises(openai.APIConnectionError):
                    distrustful.models.list()


if __name__ == "__main__":
    unittest.main()
