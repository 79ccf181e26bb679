"""`dsv4 bench --server` on servers of other engines: how they stream, what they leave out, and what they refuse."""

import http.server
import json
import tempfile
import threading
import unittest

from dsv4_process import dsv4

PIECES = ["Zwei ", "日本 ", "end."]


class Other(http.server.BaseHTTPRequestHandler):
    """Answers every chat as `form` says, and counts two characters as a token."""

    form = ""

    def do_GET(self):
        self.say(404, b"no metrics")

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/tokenize":
            return self.say(200, b'{"count": 5}')
        if self.form in ("429", "500"):
            return self.say(int(self.form), b"\xff\x1b[31m no")
        return self.say(200, self.stream().encode())

    def say(self, status, body):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

    def stream(self):
        end = "\r\n" if self.form == "crlf" else "\n"
        key = {"reasoning": "reasoning", "silent": "audio"}.get(self.form, "content")
        chunks = [{"choices": [{"index": 0, "delta": {key: piece}}]} for piece in PIECES]
        if self.form == "both":
            chunks = [{"choices": [{"index": 0, "delta": {"reasoning": piece, "reasoning_content": piece}}]} for piece in PIECES]
        if self.form == "null error":
            chunks = [{**chunk, "error": None} for chunk in chunks]
        if self.form != "no usage":
            chunks.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
        lines = [json.dumps(chunk, ensure_ascii=False) for chunk in chunks] + ["[DONE]"] * (self.form != "no end")
        before = {"comment": f": still here{end}", "named": f"event: message{end}id: 4{end}"}.get(self.form, "")
        return "".join(f"{before}data:{'' if self.form == 'no blank' else ' '}{line}{end}{end}" for line in lines)


class OtherServers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other)
        cls.url = f"http://127.0.0.1:{cls.server.server_address[1]}"
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()

    @classmethod
    def tearDownClass(cls):
        cls.server.shutdown()
        cls.server.server_close()

    def bench(self, form, *arguments):
        Other.form = form
        return dsv4("bench", "--server", self.url, "--streams", "1", "--seconds", "0.3", *arguments)

    def report(self, form, *arguments, returncode=0):
        process = self.bench(form, "--input-words", "4", "--json", *arguments)
        self.assertEqual(process.returncode, returncode, process.stderr + process.stdout)
        return json.loads(process.stdout)

    def test_streams_of_all_forms_are_read(self):
        for form in ("plain", "crlf", "comment", "named", "no blank", "null error", "reasoning", "both"):
            with self.subTest(form=form):
                report = self.report(form)
                self.assertEqual((report["failed"], report["answers_without_usage"]), (0, 0), report["first_error"])
                self.assertEqual(report["total_output_tokens"], 3 * report["completed"])
                self.assertGreater(report["mean_ttft_ms"], 0)

    def test_what_a_server_leaves_out_is_said(self):
        report = self.report("no usage", "--goodput-gap-seconds", "9")
        self.assertEqual((report["answers_without_usage"], report["goodput"]["share"]), (report["completed"], 0))
        self.assertIn("without a usage that counts tokens", self.bench("no usage", "--input-words", "4").stdout)
        silent = self.bench("silent", "--input-words", "4").stdout
        self.assertIn("first token    none was seen", silent)
        self.assertNotIn("nan", silent)
        self.assertNotIn("server memory", silent)
        self.assertIn("ended without 'data: [DONE]'", self.report("no end", returncode=1)["first_error"])

    def test_a_refusal_is_a_failure_in_words(self):
        for form in ("429", "500"):
            for process in (self.bench(form), self.bench(form, "--input-words", "4"), self.bench(form, "--input-words", "4", "--json")):
                self.assertEqual(process.returncode, 1, process.stdout + process.stderr)
                self.assertIn(f"status {form}: ", process.stdout + process.stderr)
                self.assertNotIn("\x1b", process.stdout + process.stderr)

    def test_a_server_that_is_not_there_is_told_at_once(self):
        process = dsv4("bench", "--server", "http://127.0.0.1:1", "--input-words", "4", "--seconds", "60")
        self.assertEqual((process.returncode, process.stdout), (1, ""))
        self.assertIn("http://127.0.0.1:1/metrics: ", process.stderr)

    def test_options_that_say_two_things_are_bad_usage(self):
        for arguments in (("--rate", "5", "--streams", "3"), ("--dataset", "a", "--prompts", "b"), ("--prompts", "b", "--input-words", "3"),
                          ("--agents", "--prompts", "b"), ("--ranks", "2"), ("--input-tokens", "99999999999"), ("--input-words", "1", "99999999999")):
            process = dsv4("bench", "--server", self.url, *arguments)
            self.assertEqual(process.returncode, 2, process.stdout + process.stderr)
        for arguments in (("--server", ""), ("--server", "http://127.0.0.1:65536"), ("--output-tokens", "3")):
            self.assertEqual(dsv4("bench", *arguments).returncode, 2, arguments)

    def test_a_rate_of_almost_nothing_is_one_request(self):
        Other.form = "plain"
        process = dsv4("bench", "--server", self.url, "--rate", "1e-300", "--seconds", "0.3", "--input-words", "4", "--json")
        self.assertEqual(json.loads(process.stdout)["completed"], 1)

    def test_what_a_dataset_does_not_say_is_told(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as data:
            data.write('{"prompt": "A"}\n{"promt": "B"}\n')
            data.flush()
            process = self.bench("plain", "--dataset", data.name)
            self.assertEqual(process.returncode, 0, process.stderr)
            self.assertIn(f"{data.name}: 1 of 2 objects left out", process.stderr)


if __name__ == "__main__":
    unittest.main()
