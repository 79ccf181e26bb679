"""`dsv4 batch`, and /v1/files and /v1/batches: each request is answered once, whatever ends the run in its midst."""

import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time
import unittest

from dsv4_process import BINARY, PATIENCE, TINY, dsv4, wait_until
from server_process import Server

NUM_LINES = int(os.environ.get("DSV4_BATCH_LINES", "300"))
NUM_KILLS = 10


def line(number, **body):
    return {"custom_id": f"q-{number}", "method": "POST", "url": "/v1/completions",
            "body": {"model": "tiny", "prompt": f"Story {number}: once upon a time", "max_tokens": 4 + number % 9, "temperature": 0, **body}}


def write(path, lines):
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))


def read(path):
    return [json.loads(each) for each in path.read_text().splitlines()]


def texts(answers):
    return {each["custom_id"]: each["response"]["body"]["choices"][0]["text"] for each in answers}


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"


class Command(Folder):
    def run_batch(self, *options):
        return dsv4("batch", self.input, self.output, "-m", TINY, "--max-sequences", 8, *options)

    def refused(self, lines, code=3):
        write(self.input, lines)
        done = self.run_batch()
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def test_answers_are_those_of_a_server(self):
        chat = {"custom_id": "chat é \"x\"", "method": "POST", "url": "/v1/chat/completions",
                "body": {"model": "tiny", "messages": [{"role": "user", "content": "Hello\nyou"}], "max_tokens": 12, "temperature": 0}}
        bad = {**line(1000, temperature="hot"), "custom_id": "bad"}
        other = {**line(1001), "custom_id": "other", "body": {"model": "gpt-9", "prompt": "x"}}
        lines = [*map(line, range(20)), chat, "", bad, other]
        write(self.input, lines)
        done = self.run_batch("--json")
        self.assertEqual(done.returncode, 1, done.stderr)  # Two answers are errors.
        answers = {each["custom_id"]: each for each in read(self.output)}
        self.assertEqual(len(answers), 23)
        counts = json.loads(done.stdout)
        self.assertEqual((counts["requests"], counts["answered"], counts["errors"]), (23, 23, 2))
        self.assertEqual({name: each["response"]["status_code"] for name, each in answers.items() if each["response"]["status_code"] != 200},
                         {"bad": 400, "other": 404})
        self.assertIn("temperature", answers["bad"]["response"]["body"]["error"]["message"])
        with Server("--max-sequences", 8) as server:
            for each in [*lines[:20], chat]:
                served, batched = server.post(each["url"], each["body"]), answers[each["custom_id"]]["response"]["body"]
                for reply in (served, batched):
                    for name in ("id", "created"):
                        reply.pop(name)
                    for name in [name for name in reply["usage"] if name.startswith("prompt_") and name != "prompt_tokens"]:
                        reply["usage"].pop(name)  # What was reused.
                self.assertEqual(batched, served)
        written = self.output.read_bytes()
        self.assertEqual((self.run_batch().returncode, self.output.read_bytes()), (1, written))

    def test_a_name_that_stands_for_any(self):
        write(self.input, [{**line(1), "body": {**line(1)["body"], "model": "gpt-9"}}])
        self.assertEqual(self.run_batch("--alias", "*").returncode, 0)

    def test_a_line_that_is_no_request_is_named_before_the_model_is_loaded(self):
        for faulty, word in (("{", "line 2"), ({**line(1), "custom_id": "q-0"}, "an earlier line's too"), ({**line(1), "custom_id": 7}, "got integer"),
                             ({**line(1), "method": "GET"}, "wanted POST"), ({**line(1), "url": "/flush_cache"}, "/v1/chat/completions"),
                             ({**line(1), "body": []}, "wanted an object"), (line(1, stream=True), "one line"), ("[" * 2000, "line 2"),
                             ({"custom_id": "a"}, "method: missing"), ("3", "custom_id: missing")):
            self.assertIn(word, self.refused([line(0), faulty]))
            self.assertFalse(self.output.exists())
        self.assertIn("no requests", self.refused([""]))
        self.input.unlink()
        self.assertIn("no such file", self.run_batch().stderr)

    def test_answers_of_another_batch_are_left_alone(self):
        write(self.input, [line(0)])
        for text, word in (("hello\n", "no answer of a batch"), (self.answer("q-7"), "is no request of"), (2 * self.answer("q-0"), "an earlier line's too")):
            self.output.write_text(text)
            self.assertIn(word, self.run_batch().stderr)
            self.assertEqual(self.output.read_text(), text)
        self.output.write_text("")
        self.assertEqual(self.run_batch().returncode, 0)
        for other in ({"prompt": "Another story"}, {"max_tokens": 5}, {"url": "/v1/chat/completions"}):
            asked = line(0)
            asked.update(other) if "url" in other else asked["body"].update(other)
            write(self.input, [asked])
            self.assertIn("is the answer to another request than that of", self.run_batch().stderr)
        for place in (self.input, "-"), ("-", self.output):
            done = dsv4("batch", *place, "-m", TINY)
            self.assertEqual(done.returncode, 3)
            self.assertIn("-: wanted a file", done.stderr)
        done = dsv4("batch", self.input, self.input, "-m", TINY)
        self.assertEqual(done.returncode, 3)
        self.assertIn("the input itself", done.stderr)

    @staticmethod
    def answer(name):
        return json.dumps({"id": "batch_1", "custom_id": name, "response": {"status_code": 200, "request_id": "1", "body": {}}, "error": None}) + "\n"

    def test_every_line_is_answered_once_through_ten_kills(self):
        write(self.input, map(line, range(NUM_LINES)))
        command = [BINARY, "batch", self.input, self.output, "-m", TINY, "--max-sequences", "8"]
        had, torn, chance = 0, 0, random.Random(1)
        for kill in range(NUM_KILLS):
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            wanted = NUM_LINES * (kill + 1) // (NUM_KILLS + 1)

            def answered():
                return self.output.exists() and self.output.read_bytes().count(b"\n")
            wait_until(lambda wanted=wanted, process=process: process.poll() is not None or answered() >= wanted, f"{wanted} answers")
            time.sleep(chance.random() * 0.01)
            self.assertIsNone(process.poll(), "the run ended before it could be killed")
            process.kill()
            process.wait()
            if kill == NUM_KILLS // 2:  # As a kill in the midst of a write leaves it.
                whole = self.output.read_bytes()
                self.output.write_bytes(whole[:-7])
                torn += 1
            self.assertGreaterEqual(answered(), had)
            had = answered() - torn
        self.assertEqual(subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode, 0)
        answers = read(self.output)
        self.assertEqual(sorted(each["custom_id"] for each in answers), sorted(f"q-{number}" for number in range(NUM_LINES)))
        whole = self.folder / "whole.jsonl"
        done = dsv4("batch", self.input, whole, "-m", TINY, "--max-sequences", 3, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(texts(read(whole)), texts(answers))
        counts = json.loads(done.stdout)
        self.assertGreater(counts["engine_seconds"], 0)
        self.assertLessEqual(counts["engine_seconds"], counts["seconds"])

    def test_an_interrupted_run_goes_on(self):
        write(self.input, [line(number, max_tokens=200, ignore_eos=True) for number in range(40)])
        command = [BINARY, "batch", self.input, self.output, "-m", TINY, "--max-sequences", "2"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: self.output.exists() and self.output.stat().st_size, "an answer")
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(second.returncode, 3)
        self.assertIn("another run writes", second.stderr)
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertIn("goes on from there", log)
        self.assertLess(len(read(self.output)), 40)


class Endpoints(Folder):
    BOUNDARY = "xyz"

    def upload(self, server, content, headers=None, purpose="batch", name="in.jsonl", fields=()):
        more = "".join(f'--{self.BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n' for field, value in fields)
        body = (f'{more}--{self.BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n--{self.BOUNDARY}\r\n'
                f'Content-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: application/octet-stream\r\n\r\n{content}\r\n--{self.BOUNDARY}--\r\n')
        return server.request("POST", "/v1/files", body.encode(), {"Content-Type": f"multipart/form-data; boundary={self.BOUNDARY}", **(headers or {})})

    def start(self, server, lines, headers=None, endpoint="/v1/completions"):
        status, _, file = self.upload(server, "".join(json.dumps(each) + "\n" for each in lines), headers)
        self.assertEqual(status, 200, file)
        return server.post("/v1/batches", {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h", "metadata": {"job": "night"}}, headers)

    def state(self, server, batch, headers=None):
        return server.request("GET", f"/v1/batches/{batch['id']}", headers=headers)[2]

    def ended(self, server, batch, headers=None):
        def look():
            state = self.state(server, batch, headers)
            return state if state["status"] in ("completed", "failed", "cancelled", "expired") else None
        return wait_until(look, "the batch has ended")

    def content(self, server, file, headers=None):
        return [json.loads(each) for each in server.request("GET", f"/v1/files/{file}/content", headers=headers)[2].splitlines()]

    def test_a_batch_from_file_to_file(self):
        with Server("--batches-dir", self.folder) as server:
            lines = [*map(line, range(12)), {**line(99, temperature="hot"), "custom_id": "bad"}]
            batch = self.start(server, lines)
            self.assertEqual((batch["object"], batch["status"], batch["metadata"]), ("batch", "validating", {"job": "night"}))
            done = self.ended(server, batch)
            self.assertEqual((done["status"], done["request_counts"]), ("completed", {"total": 13, "completed": 12, "failed": 1}))
            answers = self.content(server, done["output_file_id"])
            self.assertEqual({each["custom_id"] for each in answers}, {f"q-{number}" for number in range(12)})
            self.assertEqual(texts(answers)["q-3"], server.post("/v1/completions", lines[3]["body"])["choices"][0]["text"])
            self.assertEqual([each["custom_id"] for each in self.content(server, done["error_file_id"])], ["bad"])
            files = server.request("GET", "/v1/files")[2]["data"]
            self.assertEqual({each["purpose"] for each in files}, {"batch", "batch_output"})
            self.assertEqual(server.request("GET", "/v1/batches")[2]["data"], [done])
            inputs = server.request("GET", "/v1/files?purpose=batch&order=asc")[2]
            self.assertEqual([each["id"] for each in inputs["data"]], [done["input_file_id"]])
            first = server.request("GET", "/v1/files?limit=1")[2]
            self.assertEqual((len(first["data"]), first["has_more"]), (1, True))
            rest = server.request("GET", f"/v1/files?after={first['last_id']}")[2]
            self.assertEqual(([*first["data"], *rest["data"]], rest["has_more"]), (files, False))
            self.assertEqual(server.request("GET", "/v1/batches?limit=0")[2]["error"]["param"], "limit")
            made = [self.upload(server, "{}\n")[2]["id"] for _ in range(6)]
            self.assertEqual([each["id"] for each in server.request("GET", "/v1/files?limit=6")[2]["data"]], made[::-1])
            self.assertEqual(server.request("DELETE", f"/v1/files/{done['output_file_id']}")[2]["deleted"], True)
            self.assertEqual(server.request("GET", f"/v1/files/{done['output_file_id']}")[0], 404)
            self.assertNotIn("owner", json.dumps([files, done]))

    def test_a_batch_goes_on_after_a_kill(self):
        lines = [line(number, max_tokens=60, ignore_eos=True) for number in range(30)]
        arguments = ("--batches-dir", self.folder, "--max-sequences", 2, "--api-key", "mine", "--api-key", "yours")
        mine, yours = ({"Authorization": f"Bearer {key}"} for key in ("mine", "yours"))
        server = Server(*arguments)
        batch = self.start(server, lines, mine)
        wait_until(lambda: self.state(server, batch, mine)["request_counts"]["completed"], "an answer")
        self.assertEqual(server.request("GET", f"/v1/batches/{batch['id']}", headers=yours)[0], 404)
        self.assertEqual(server.request("GET", "/v1/files", headers=yours)[2]["data"], [])
        self.assertEqual(server.request("DELETE", f"/v1/files/{batch['input_file_id']}", headers=mine)[0], 400)
        server.process.kill()
        server.__exit__()
        with Server(*arguments) as server:
            done = self.ended(server, batch, mine)
            self.assertEqual((done["status"], done["request_counts"]["completed"]), ("completed", 30))
            self.assertEqual(sorted(each["custom_id"] for each in self.content(server, done["output_file_id"], mine)), sorted(each["custom_id"] for each in lines))
            batch = self.start(server, lines, mine)
        with Server(*arguments[:4], "--api-key", "yours"):
            record = self.folder / "batches" / f"{batch['id']}.json"
            wait_until(lambda: json.loads(record.read_text())["status"] == "failed", "the batch has failed")
        with Server(*arguments) as server:
            failed = self.ended(server, batch, mine)
            self.assertEqual(failed["status"], "failed")
            self.assertIn("not known any more", failed["errors"]["data"][0]["message"])

    def test_a_cancelled_batch_keeps_what_it_has(self):
        with Server("--batches-dir", self.folder, "--max-sequences", 1) as server:
            batch = self.start(server, [line(number, max_tokens=100, ignore_eos=True) for number in range(50)])
            wait_until(lambda: self.state(server, batch)["request_counts"]["completed"], "an answer")
            self.assertEqual(server.request("POST", f"/v1/batches/{batch['id']}/cancel", {})[2]["status"], "cancelling")
            done = self.ended(server, batch)
            self.assertEqual(done["status"], "cancelled")
            self.assertEqual(len(self.content(server, done["output_file_id"])), done["request_counts"]["completed"])
            self.assertEqual(server.request("POST", f"/v1/batches/{batch['id']}/cancel", {})[0], 400)

    def test_what_is_wrong_is_said(self):
        with Server("--batches-dir", self.folder, "--batches-mib", 1) as server:
            failed = self.ended(server, self.start(server, [line(0), {**line(1), "custom_id": "q-0"}]))
            self.assertEqual(failed["status"], "failed")
            self.assertTrue(failed["errors"]["data"][0]["message"].startswith("line 2: custom_id"), failed)
            self.assertEqual(failed["errors"]["data"][0]["line"], 2)
            failed = self.ended(server, self.start(server, [line(0)], endpoint="/v1/chat/completions"))
            self.assertIn("the batch's endpoint is /v1/chat/completions", failed["errors"]["data"][0]["message"])
            self.assertEqual(self.upload(server, "x", purpose="fine-tune")[0], 400)
            self.assertEqual(self.upload(server, "x" * (1 << 20))[0], 400)
            for field in ("expires_after[anchor]", "expires_after[seconds]", "model", "file"):
                status, _, refused = self.upload(server, json.dumps(line(0)), fields=((field, "3600"),))
                self.assertEqual(status, 400, field)
                self.assertIn(field, refused["error"]["message"])
            self.assertEqual(self.upload(server, json.dumps(line(0)), fields=(("expires_after", ""),))[0], 200)
            for body in (b"", b"--xyz", b"--xyz\r\n", b"--xyz\r\nA: b\r\n\r\n\r\n--xyz--", b"--xyz\r\nContent-Disposition: form-data; name=\"file\"\r\n--xyz--"):
                self.assertEqual(server.request("POST", "/v1/files", body, {"Content-Type": "multipart/form-data; boundary=xyz"})[0], 400)
            self.assertEqual(server.request("POST", "/v1/files", b"x", {"Content-Type": "text/plain"})[0], 400)
            good = self.upload(server, json.dumps(line(0)))[2]["id"]
            whole = {"input_file_id": good, "endpoint": "/v1/completions", "completion_window": "24h"}
            for change in ({"input_file_id": "file-0"}, {"input_file_id": "../secret"}):
                self.assertEqual(server.request("POST", "/v1/batches", {**whole, **change})[0], 404)
            self.assertEqual(server.request("POST", "/v1/batches", {**whole, "output_expires_after": None})[0], 200)
            for change in ({"endpoint": "/flush_cache"}, {"completion_window": "1h"}, {"metadata": 3}, {"more": 1}, {"input_file_id": None}):
                self.assertEqual(server.request("POST", "/v1/batches", {**whole, **change})[0], 400, change)
            for path in ("/v1/files/file-0", "/v1/files/..%2fsecret", "/v1/batches/batch_0", "/v1/files/file-0/content"):
                self.assertEqual(server.request("GET", path)[0], 404, path)
            with self.assertRaisesRegex(AssertionError, "another server uses"):
                Server("--batches-dir", self.folder)
        with Server() as server:
            status, _, reply = server.request("GET", "/v1/batches")
            self.assertEqual(status, 404)
            self.assertIn("--batches-dir", reply["error"]["message"])


if __name__ == "__main__":
    unittest.main()
