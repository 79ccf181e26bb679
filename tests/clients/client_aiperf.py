# pip: aiperf==0.13.0
"""aiperf: synthetic prompts in four streams over chat completions. Every request succeeds, and its counts of tokens are those of the server."""

import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run(
        [pathlib.Path(sys.executable).parent / "aiperf", "profile", "-m", "tiny", "--url", sys.argv[1], "--endpoint-type", "chat", "--streaming",
         "--tokenizer", ROOT / "models" / "tiny", "--concurrency", "4", "--request-count", "12", "--synthetic-input-tokens-mean", "64",
         "--output-tokens-mean", "16", "--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--ui", "none", "--artifact-dir", folder],
        cwd=folder, capture_output=True, text=True, timeout=600)
    report = pathlib.Path(folder) / "profile_export_aiperf.json"
    assert done.returncode == 0 and report.exists(), (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    figures = json.loads(report.read_text())
assert figures["request_count"]["avg"] == 12 and figures.get("error_request_count", {"avg": 0})["avg"] == 0, figures
assert figures["output_sequence_length"]["min"] == figures["output_sequence_length"]["max"] == 16, figures["output_sequence_length"]
print(f"{figures['request_count']['avg']:.0f} requests of {figures['output_sequence_length']['avg']:.0f} tokens")
