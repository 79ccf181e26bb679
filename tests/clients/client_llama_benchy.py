# pip: llama-benchy==0.4.0
"""llama-benchy: its table of prompt and generation speeds, streams at one time and a warm prefix cache; exact lengths are asked for."""

import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Book(http.server.BaseHTTPRequestHandler):
    """The text that it makes prompts of; it would fetch one from the network."""

    def do_GET(self):
        text = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


book = http.server.HTTPServer(("127.0.0.1", 0), Book)
threading.Thread(target=book.serve_forever, daemon=True).start()
with tempfile.TemporaryDirectory() as folder:
    result = pathlib.Path(folder) / "result.json"
    done = subprocess.run(
        [pathlib.Path(sys.executable).parent / "llama-benchy", "--base-url", sys.argv[1] + "/v1", "--model", "tiny", "--tokenizer", ROOT / "models" / "tiny",
         "--pp", "128", "--tg", "16", "--exact-tg", "--depth", "0", "256", "--runs", "2", "--concurrency", "1", "4", "--latency-mode", "api", "--skip-coherence",
         "--enable-prefix-caching", "--exit-on-first-fail", "--book-url", f"http://127.0.0.1:{book.server_port}/", "--format", "json", "--save-result", result],
        cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0 and result.exists(), (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    report = json.loads(result.read_text())
runs = report.get("benchmarks") or report.get("results")
assert runs and len(runs) >= 4, report
print(f"{len(runs)} measurements")
