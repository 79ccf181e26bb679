# pip: guidellm==0.8.1
"""guidellm: synthetic prompts in four streams over chat completions; every request succeeds."""

import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
with tempfile.TemporaryDirectory() as folder:
    result = pathlib.Path(folder) / "result.json"
    done = subprocess.run(
        [pathlib.Path(sys.executable).parent / "guidellm", "run", "--backend", f"kind=openai_http,target={sys.argv[1]},model=tiny",
         "--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=12", "--tokenizer", f"kind=huggingface_auto,model={ROOT / 'models' / 'tiny'}",
         "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16", "--output", f"kind=json,path={result}", "--disable-console"],
        cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and result.exists(), (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    (benchmark,) = json.loads(result.read_text())["benchmarks"]
totals = benchmark["metrics"]["request_totals"]
assert totals["successful"] >= 12 and not totals["errored"], totals
print(f"{totals['successful']} requests")
