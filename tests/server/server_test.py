"""`dsv4 serve` over plain HTTP in whatever dialect: errors, limits, leaving clients, load, the end."""

import contextlib
import gzip
import json
import pathlib
import re
import signal
import socket
import tempfile
import threading
import time
import unittest

from dsv4_process import PATIENCE, ROOT, SLOWNESS, TINY, dsv4, wait_until
from server_process import Server
from server_testing import CHAT, ENDLESS, QUESTION, STRICT, TICKET, SharedServer


class Errors(SharedServer):
    def refused(self, body, path=CHAT):
        status, _, reply = self.server.request("POST", path, body)
        return status, reply["error"]["param"], reply["error"]["code"], reply["error"]["message"]

    def test_wrong_fields_are_named(self):
        for change, param in (({"messages": None}, "messages"), ({"messages": "x"}, "messages"), ({"messages": []}, "messages"),
                              ({"temperature": "hot"}, "temperature"), ({"temperature": -1}, "temperature"), ({"top_p": 0}, "top_p"),
                              ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"), ({"n": 0}, "n"),
                              ({"stop": 5}, "stop"), ({"stop": ""}, "stop"), ({"stop": ["is", ""]}, "stop"), ({"top_logprobs": 3}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
                              ({"reasoning_effort": "huge"}, "reasoning_effort"), ({"thinking": "yes"}, "thinking"),
                              ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
                              ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages[0].content"),
                              ({"tools": [{}]}, "tools[0].function"), ({"tool_choice": "required"}, "tool_choice"),
                              ({"tool_choice": "perhaps"}, "tool_choice"), ({"response_format": {"type": "yaml"}}, "response_format.type"),
                              ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "response_format.json_schema.schema"),
                              ({"tools": [{"function": {**STRICT, "parameters": {"not": {}}}}]}, "tools[0].function.parameters"),
                              ({"tools": [{"function": {**STRICT, "strict": "yes"}}]}, "tools[0].function.strict"),
                              ({"tools": [TICKET], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
                              ({"tools": [TICKET], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x", "tools": [TICKET]}}},
                               "tool_choice.allowed_tools.mode"),
                              ({"tools": [TICKET], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
                              ({"logit_bias": {"x": 1}}, "logit_bias"), ({"stop_token_ids": [10 ** 6]}, "stop_token_ids"),
                              ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"), ({"seed": "x"}, "seed"),
                              ({"cache_salt": 5}, "cache_salt"), ({"timeout": 0}, "timeout")):
            with self.subTest(change=change):
                status, got, _, message = self.refused({"messages": QUESTION, **change})
                self.assertEqual((status, got), (400, param), message)

    def test_bodies_that_are_no_request(self):
        for body in ("", "{", "[]", "5", '{"messages": [', "[" * 100000, '"\\ud800"', b'{"messages": "\xff"}', '{"a": 1} x'):
            with self.subTest(body=body[:20]):
                self.assertEqual(self.refused(body)[0], 400)

    def test_too_long_and_unknown(self):
        status, _, code, _ = self.refused({"messages": [{"role": "user", "content": "word " * 20000}]})
        self.assertEqual((status, code), (400, "context_length_exceeded"))
        self.assertEqual(self.refused({"messages": QUESTION, "model": "gpt-7"})[:2], (404, "model"))
        self.assertEqual(self.server.request("GET", "/v1/nothing")[0], 404)
        self.assertEqual(self.server.request("GET", CHAT)[0], 405)
        self.assertEqual(self.server.request("GET", "/v1/models/other")[0], 404)

    def test_the_model_s_notice_is_a_header(self):
        wanted = json.loads((ROOT / "models/tiny/generation_config.json").read_text())["dsv4_card"]
        other, plain = [{"role": "user", "content": "法国的首都是哪里？"}], QUESTION
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        for path, body in ((CHAT, {"max_tokens": 1}), (CHAT, {"max_tokens": 1, "stream": True}), (CHAT, {"max_tokens": 1, "tools": [tool], "tool_choice": "required"}),
                           ("/v1/messages", {"max_tokens": 1}), ("/api/chat", {"stream": False, "options": {"num_predict": 1}}), ("/v1/responses", {"max_output_tokens": 1})):
            name = "input" if "responses" in path else "messages"
            for messages, notice in ((other, wanted["notice"]), ([*other, *plain], None), ([*plain, *other], wanted["notice"])):
                with self.subTest(path=path, messages=messages):
                    status, headers, _ = self.server.request("POST", path, {**body, name: messages})
                    self.assertEqual((status, headers["x-dsv4-notice"]), (200, notice))
        self.assertEqual(self.server.request("POST", "/v1/completions", {"prompt": "日本", "max_tokens": 1})[1]["x-dsv4-notice"], None)
        self.assertEqual(self.server.request("GET", "/props")[2]["examples"], wanted["examples"])
        with Server("--cors-origin", "https://page.example") as server:
            exposed = server.request("POST", CHAT, {"messages": other, "max_tokens": 1}, headers={"Origin": "https://page.example"})[1]["Access-Control-Expose-Headers"]
            self.assertIn("x-dsv4-notice", exposed)

    def test_unknown_fields_are_named(self):
        shapes = ((CHAT, {"messages": QUESTION}), (CHAT, {"messages": QUESTION, "stream": True}), ("/v1/completions", {"prompt": "a"}),
                  ("/v1/responses", {"input": "a"}), ("/v1/messages", {"messages": QUESTION}), ("/tokenize", {"prompt": "a"}),
                  ("/v1/messages/count_tokens", {"messages": QUESTION}), ("/tokenize", {"messages": QUESTION, "return_token_strs": True}),
                  ("/detokenize", {"tokens": [1]}), ("/api/chat", {"messages": QUESTION, "stream": False, "options": {"num_predict": 1}}))
        with Server() as server, Server("--unknown-fields", "refuse") as strict:
            for path, body in shapes:
                body = body if path.startswith(("/tok", "/detok", "/api", "/v1/messages/")) else {**body, "max_output_tokens" if "responses" in path else "max_tokens": 1}
                with self.subTest(path=path):
                    for known in (server, strict):
                        status, headers, _ = known.request("POST", path, body)
                        self.assertEqual((status, headers["x-dsv4-unknown-fields"]), (200, None))
                    status, headers, _ = server.request("POST", path, {**body, "no_such_field": {"x": 1}, "nothing": None, "b\r\nad": 1})
                    self.assertEqual((status, headers["x-dsv4-unknown-fields"]), (200, "no_such_field, b??ad"))
                    status, _, reply = strict.request("POST", path, {**body, "no_such_field": {"x": 1}})
                    self.assertEqual(status, 400)
                    self.assertIn("no_such_field: a field that is not known here", json.dumps(reply))
            self.assertIn(f'dsv4_unknown_request_fields_total{{field="no_such_field"}} {len(shapes)}', server.request("GET", "/metrics")[2])
        self.assertEqual(sum("'no_such_field'" in line for line in server.log), 1, server.log)


class Plumbing(SharedServer):
    def test_small_endpoints(self):
        self.assertEqual(self.server.request("GET", "/health")[2], {"status": "ok"})
        self.assertEqual(self.server.request("GET", "/ready")[0], 200)
        models = self.server.request("GET", "/v1/models")[2]["data"]
        self.assertEqual([model["id"] for model in models], [self.server.model])
        self.assertEqual(self.server.request("GET", f"/v1/models/{self.server.model}")[2], models[0])
        self.assertRegex(self.server.request("GET", "/version")[2]["version"], r"^\d+\.\d+")
        self.server.post(CHAT, {"messages": QUESTION, "max_tokens": 2})
        self.assertGreater(self.server.metric("dsv4_output_tokens_total"), 0)
        self.assertGreater(self.server.metric("dsv4_first_token_seconds_count"), 0)
        status, headers, body = self.server.request("HEAD", "/health")
        self.assertEqual((status, headers["Content-Length"], body), (200, "16", ""))

    def test_the_dashboard_asks_for_metrics_that_exist(self):
        self.server.post(CHAT, {"messages": QUESTION, "max_tokens": 2})
        text = self.server.request("GET", "/metrics")[2]
        asked = set(re.findall(r"dsv4_\w+", (ROOT / "deploy" / "grafana-dashboard.json").read_text()))
        self.assertGreater(len(asked), 10)
        self.assertEqual({name for name in asked if not re.search(rf"^{name}\b", text, flags=re.MULTILINE)}, set())

    def test_the_page_goes_out_compressed_and_stays_in_the_browser(self):
        def get(path, **headers):
            with contextlib.closing(self.server.connect()) as connection:
                connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
                reply = connection.getresponse()
                return reply.status, dict(reply.getheaders()), reply.read()
        _, head, page = get("/")
        self.assertEqual((head["Cache-Control"], head["Vary"], "Content-Encoding" in head), ("no-cache", "Accept-Encoding", False))
        paths = re.findall(rb'"(page/[0-9a-f]{16}/[\w.-]+)"', page)
        self.assertGreater(len(paths), 10)
        for path in ["/", *("/" + each.decode() for each in paths)]:
            whole = get(path)[2]
            for accepted, packed in (("gzip, deflate, br", True), ("GZIP;q=0", False), ("*", True), ("br;q=1.0, gzip;q=0.5", True), ("identity", False), ("gzip;q=0, *", False)):
                status, head, body = get(path, Accept_Encoding=accepted)
                self.assertEqual((status, head.get("Content-Encoding")), (200, "gzip" if packed else None), (path, accepted))
                self.assertEqual(gzip.decompress(body) if packed else body, whole, path)
            self.assertIn("no-cache" if path == "/" else "immutable", head["Cache-Control"])
            status, again, body = get(path, If_None_Match=head["ETag"])
            self.assertEqual((status, body, again["ETag"]), (304, b"", head["ETag"]))
            self.assertEqual(get(path, If_None_Match='W/"0"')[0], 200)
        style = next(each.decode() for each in paths if each.endswith(b"katex.css"))
        fonts = re.findall(rb"url\(([^)]*)\)", get("/" + style)[2])
        self.assertEqual(len(fonts), 20)
        for font in fonts:
            status, head, body = get(f"/{style.rsplit('/', 1)[0]}/{font.decode()}")
            self.assertEqual((status, head["Content-Type"], body[:4]), (200, "font/woff2", b"wOF2"))
        # A page from before an update still gets its files, for once.
        name = style.rsplit("/", 1)[1]
        self.assertEqual(get(f"/page/0123456789abcdef/{name}")[1]["Cache-Control"], "no-cache")
        for path in ("/page/", "/page/katex.css", f"/page/{name}/", "/page/0123456789abcdef/../page.html", "/page//page.html/x"):
            self.assertEqual(get(path)[0], 404, path)

    def test_other_peoples_pages_may_not_ask(self):
        for origin, expected in (("https://evil.example", 403), ("null", 403), (self.server.url, 200)):
            self.assertEqual(self.server.request("POST", "/tokenize", {"prompt": "x"}, {"Origin": origin})[0], expected, origin)

    def test_a_connection_serves_many_requests_and_carries_ids(self):
        connection = self.server.connect()
        ids = set()
        for _ in range(3):
            connection.request("GET", "/health")
            response = connection.getresponse()
            response.read()
            ids.add(response.headers["x-request-id"])
        connection.close()
        self.assertEqual(len(ids), 3)

    def test_requests_sent_ahead_are_answered_in_order(self):
        one = "GET {} HTTP/1.1\r\nHost: x\r\nConnection: {}\r\n\r\n"
        reply = self.server.raw((one.format("/health", "keep-alive") + one.format("/nothing", "close")).encode())
        self.assertLess(reply.index(b"200 OK"), reply.index(b"404 Not Found"))

    def test_what_is_no_http_or_too_much_of_it(self):
        self.assertIn(b" 400 ", self.server.raw(b"HELO there\r\n\r\n"))
        many = b"".join(b"X-%d: y\r\n" % i for i in range(10000))
        self.assertIn(b" 431 ", self.server.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n" + many + b"\r\n"))
        head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        self.assertIn(b" 413 ", self.server.raw(head % (100 << 20)))
        self.assertIn(b" 400 ", self.server.raw(head.replace(b"%d", b"-5")))
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_connections_that_say_nothing_hold_nobody_up(self):
        idle = [socket.create_connection((self.server.host, self.server.port)) for _ in range(100)]
        for i, connection in enumerate(idle):
            connection.sendall((f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{" if i % 2 else "GET /hea").encode())
        self.assertIn("Paris", self.server.post(CHAT, {"messages": QUESTION, "temperature": 0})["choices"][0]["message"]["content"])
        for connection in idle:
            connection.close()

    def test_an_expectation_is_answered(self):
        body = b'{"prompt": "x"}'
        head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
        reply = self.server.raw(head + body)
        self.assertTrue(reply.startswith(b"HTTP/1.1 100 Continue"))
        self.assertIn(b" 200 OK", reply)

    def test_a_client_that_leaves_stops_its_generation(self):
        for stream in (True, False):
            before = self.server.metric("dsv4_output_tokens_total")
            body = json.dumps({"messages": QUESTION, "max_tokens": 4000, "stream": stream, **ENDLESS})
            connection = socket.create_connection((self.server.host, self.server.port))
            connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            wait_until(lambda before=before: self.server.metric("dsv4_output_tokens_total") > before, "a token")
            connection.close()
            wait_until(lambda: self.server.metric("dsv4_requests_running") == 0, "idle")
            # Written while we looked and left; all of it takes many seconds.
            self.assertLess(self.server.metric("dsv4_output_tokens_total") - before, 3900)

    def test_a_request_has_its_time(self):
        status, _, reply = self.server.request("POST", CHAT, {"messages": QUESTION, "max_tokens": 4000, "timeout": 0.2, **ENDLESS})
        self.assertEqual(status, 504, reply)


class Bench(SharedServer):
    def test_a_load_is_answered_as_if_there_were_none(self):
        with tempfile.NamedTemporaryFile("w") as prompts:
            for city in ("Paris", "Rome", "Oslo"):
                prompts.write(json.dumps({"messages": [{"role": "user", "content": f"Where is {city}?"}]}) + "\n")
            prompts.flush()
            for kind in (("--streams", 4), ("--rate", 5)):
                process = dsv4("bench", "--server", self.server.url, "--seconds", 2, "--output-tokens", 12, "--prompts", prompts.name, "--json", *kind)
                self.assertEqual(process.returncode, 0, process.stderr + process.stdout)
                report = json.loads(process.stdout)
                self.assertGreaterEqual(report["requests"], 3)
                self.assertEqual((report["failed"], report["wrong_answers"]), (0, 0))
                self.assertGreater(report["inter_token_seconds"]["p50"], 0)
                self.assertGreater(report["output_tokens_per_second"], 0)
                self.assertGreater(report["steady_output_tokens_per_second"], 0)

    def load(self, *arguments, seconds=2):
        process = dsv4("bench", "--server", self.server.url, "--seconds", seconds, "--json", *arguments)
        self.assertEqual(process.returncode, 0, process.stderr + process.stdout)
        return json.loads(process.stdout)

    def test_a_dataset_has_its_own_lengths(self):
        with tempfile.NamedTemporaryFile("w") as dataset:
            talk = [{"from": "human", "value": "Where is Rome?"}, {"from": "gpt", "value": "In Italy, by the river."}]
            json.dump([{"conversations": talk}], dataset)
            dataset.flush()
            report = self.load("--streams", 2, "--dataset", dataset.name)
            answer = self.server.post("/tokenize", {"prompt": talk[1]["value"]})["count"]
            self.assertEqual(report["total_output_tokens"], report["completed"] * answer)
            report = self.load("--streams", 2, "--dataset", dataset.name, "--output-tokens", 5)
            self.assertEqual(report["total_output_tokens"], report["completed"] * 5)
        self.assertEqual(dsv4("bench", "--server", self.server.url, "--dataset", "/no/such").returncode, 3)

    def test_lengths_are_spread(self):
        report = self.load("--streams", 4, "--input-tokens", 100, "--output-tokens", 10, "--length-spread", 0.5, seconds=6)
        self.assertGreater(report["completed"], 4)
        self.assertNotEqual(report["total_output_tokens"], report["completed"] * 10)
        self.assertAlmostEqual(report["total_output_tokens"] / report["completed"], 10, delta=4)
        self.assertGreater(report["median_tpot_ms"], 0)

    def test_agents_send_what_was_said_and_more(self):
        # Long enough for all turns: the mean of the first ones alone is small.
        report = self.load("--streams", 2, "--agents", "--input-tokens", 600, "--output-tokens", 8, "--turns", 9, "--warm-up", 1, seconds=2 * SLOWNESS)
        self.assertAlmostEqual(report["agents"]["mean_input_tokens"], 600, delta=250)
        self.assertGreater(report["share_of_prompt_reused"], 0.5)
        self.assertIn(report["agents"]["counts"], (True, False))

    def test_what_cannot_be_loaded_is_an_error(self):
        self.assertEqual(dsv4("bench", "--server", "https://x").returncode, 2)
        self.assertEqual(dsv4("bench", "--server", self.server.url, "--depth", "5").returncode, 2)
        self.assertEqual(dsv4("bench", "--server", "http://127.0.0.1:1").returncode, 1)


class Verifies(unittest.TestCase):
    def test_health_and_metrics_say_what_was_found(self):
        with Server("--verify", 1) as server:
            server.post(CHAT, {"messages": QUESTION, "temperature": 0, "thinking": False, "max_tokens": 8})
            # The queue has room for four, so at least so many of the steps are not dropped, however slow the other backend is.
            wait_until(lambda: server.metric("dsv4_verify_steps") >= 4, "four steps verified")
            metrics = server.request("GET", "/metrics")[2]
            self.assertEqual(float(re.search(r"^dsv4_verify_drift (\S+)$", metrics, re.M)[1]), 0)
            self.assertLess(float(re.search(r"^dsv4_verify_worst_error (\S+)$", metrics, re.M)[1]), 0.5)
            health = server.request("GET", "/health")[2]
            self.assertEqual(health["status"], "ok")
            self.assertRegex(health["verification"], r"verify: clean: \d+ of \d+ sampled")


class Steps(unittest.TestCase):
    def test_a_server_says_how_it_reads_prompts_beside_answers(self):
        for options, said in (((), "by the prices of steps, no bound on the time between two tokens"),
                              (("--max-gap-seconds", "auto", "--max-sequences", "auto"), "no bound"),
                              (("--max-gap-seconds", 0.5), "by the prices of steps, a bound of 0.5 s"),
                              (("--max-prefill-beside-decode", 128), "up to 128 tokens a step")):
            with Server(*options) as server:
                self.assertEqual(server.request("GET", "/props")[2]["total_slots"], 64)
                server.post(CHAT, {"messages": QUESTION, "max_tokens": 2})
                self.assertEqual(server.metric("dsv4_holding_steps_total"), 0)
            self.assertIn(said, "".join(server.log))

    def test_what_is_no_number_is_refused(self):
        for wrong in (("--max-sequences", 0), ("--max-sequences", "many"), ("--max-prefill-beside-decode", 0),
                      ("--max-gap-seconds", -1), ("--max-sequences", 10**12), ("--max-sequences", 5000)):
            self.assertEqual(dsv4("serve", "-m", TINY, *wrong).returncode, 2, wrong)


class Limits(unittest.TestCase):
    def test_keys(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("first\nsecond\n")
            keys.flush()
            with Server("--api-key-file", keys.name, "--cors-origin", "https://example.org") as server:
                self.assertEqual(server.request("GET", "/health")[0], 200)
                for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "firs"}):
                    status, reply_headers, reply = server.request("GET", "/v1/models", headers=headers)
                    self.assertEqual((status, reply["error"]["type"]), (401, "authentication_error"))
                self.assertEqual(server.request("POST", "/v1/messages", {})[2]["type"], "error")
                ask = {"messages": [{"role": "user", "content": "One two three. " * 20}], "max_tokens": 1}
                for headers, cached in (({"Authorization": "Bearer first"}, False), ({"x-api-key": "second"}, False),
                                        ({"x-api-key": "first"}, True), ({"Authorization": "BEARER  first "}, True)):
                    reply = server.post(CHAT, ask, headers)  # One owner's prompts are nobody else's business.
                    self.assertEqual(reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, cached)
                status, headers, _ = server.request("OPTIONS", CHAT, headers={"Origin": "https://example.org"})
                self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (204, "https://example.org"))

    def test_what_requests_mean_that_do_not_say(self):
        def message(server, **fields):
            return server.post(CHAT, {"messages": QUESTION, "temperature": 0, **fields})["choices"][0]["message"]
        with Server("--thinking-mode", "chat", "--effort", "max", "--both-reasoning-fields") as server:
            self.assertNotIn("reasoning_content", message(server))
            whole = message(server, thinking=True)
            self.assertTrue(whole["reasoning"])
            self.assertEqual(whole["reasoning"], whole["reasoning_content"])
            events = server.stream(CHAT, {"messages": QUESTION, "temperature": 0, "thinking": True})
            deltas = [choice["delta"] for _, chunk in events[:-1] for choice in chunk["choices"]]
            self.assertEqual("".join(delta.get("reasoning", "") for delta in deltas), whole["reasoning"])
            self.assertEqual([delta.get("reasoning") for delta in deltas], [delta.get("reasoning_content") for delta in deltas])
            asked = [server.post("/tokenize", {"messages": QUESTION, "thinking": True, **effort})["tokens"]
                     for effort in ({}, {"reasoning_effort": "max"}, {"reasoning_effort": "low"})]
            self.assertEqual(asked[0], asked[1])
            self.assertNotEqual(asked[0], asked[2])
        process = dsv4("serve", "--effort", "huge")
        self.assertEqual(process.returncode, 2)
        self.assertIn("--effort", process.stderr)

    def test_a_full_queue_says_when_to_come_again(self):
        with Server("--max-sequences", 1, "--max-waiting", 1) as server:
            long = json.dumps({"messages": QUESTION, "max_tokens": 100_000, "stream": True, **ENDLESS})
            short = {"messages": QUESTION, "max_tokens": 2}
            held = []
            for metric in ("dsv4_requests_running", "dsv4_requests_waiting"):
                held.append(server.connect())
                held[-1].request("POST", CHAT, long)
                wait_until(lambda metric=metric: server.metric(metric) == 1, metric)
            status, headers, reply = server.request("POST", CHAT, short)
            self.assertEqual((status, headers["Retry-After"]), (429, "1"), reply)
            for connection in held:
                connection.close()
            wait_until(lambda: server.request("POST", CHAT, short)[0] == 200, "room again")

    def test_a_long_prompt_keeps_its_connection_alive(self):
        with Server("--keep-alive-seconds", "0.05", "--max-step-tokens", 64) as server:
            body = json.dumps({"messages": [{"role": "user", "content": "word " * 3000}], "max_tokens": 1, "stream": True})
            reply = server.raw(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            self.assertIn(b": keep-alive\n\n", reply)
            self.assertIn(b"[DONE]", reply)

    def test_a_client_that_leaves_stops_the_reading_of_its_prompt(self):
        words = 30000
        with Server("--max-step-tokens", 64) as server:
            body = json.dumps({"prompt": "word " * words, "max_tokens": 1, "stream": True})
            with socket.create_connection((server.host, server.port)) as connection:
                connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                wait_until(lambda: server.metric("dsv4_prefill_tokens_total") > 0, "the first tokens read")
            wait_until(lambda: server.metric("dsv4_requests_running") == 0, "idle")
            # It has read for as long as we took to look and leave; all of it takes many seconds.
            self.assertLess(server.metric("dsv4_prefill_tokens_total"), 0.9 * words)

    def test_a_client_that_does_not_read_holds_nobody_up(self):
        with Server() as server:
            body = json.dumps({"messages": QUESTION, "n": 16, "max_tokens": 400, "temperature": 2, "stream": True, "logprobs": True, "top_logprobs": 20})
            slow = socket.create_connection((server.host, server.port))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            self.assertEqual(server.post(CHAT, {"messages": QUESTION, "temperature": 0})["choices"][0]["finish_reason"], "stop")
            slow.close()

    def test_the_end_is_graceful(self):
        with Server("--drain-seconds", PATIENCE) as server:
            results = []

            def ask():
                results.append(server.post(CHAT, {"messages": QUESTION, "max_tokens": 500, **ENDLESS}))
            running = threading.Thread(target=ask)
            running.start()
            wait_until(lambda: server.metric("dsv4_requests_running") + len(results) > 0, "the request runs")
            idle = server.connect()
            idle.request("GET", "/health")
            idle.getresponse().read()
            server.process.send_signal(signal.SIGTERM)
            running.join()
            self.assertEqual(results[0]["usage"]["completion_tokens"], 500)
            self.assertEqual(server.process.wait(timeout=PATIENCE), 0)
            idle.close()

    def test_a_unix_socket(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/socket"
            with Server("--unix-socket", path), socket.socket(socket.AF_UNIX) as connection:
                connection.connect(path)
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                self.assertIn(b"200 OK", b"".join(iter(lambda: connection.recv(4096), b"")))
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [])

    def test_a_killed_server_starts_again_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/socket"
            body = json.dumps({"messages": QUESTION, "max_tokens": 2000, **ENDLESS})
            request = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            with Server("--unix-socket", path) as server, socket.socket(socket.AF_UNIX) as connection:
                connection.connect(path)
                connection.sendall(request)
                time.sleep(0.2)
                server.process.kill()
                server.process.wait()
            with Server("--unix-socket", path), socket.socket(socket.AF_UNIX) as connection:
                connection.connect(path)
                connection.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                self.assertIn(b"200 OK", b"".join(iter(lambda: connection.recv(4096), b"")))

    def test_a_taken_port_is_an_error(self):
        with Server() as server, self.assertRaisesRegex(AssertionError, "cannot listen on"):
            Server("--port", server.port)


if __name__ == "__main__":
    unittest.main()
