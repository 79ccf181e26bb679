# pip: schemathesis==4.32.5
"""Requests made of /openapi.json, right ones and wrong ones: no answer may be a 500. DSV4_SCHEMATHESIS_SECONDS (60) is how long."""

import os
import subprocess
import sys
import tempfile
import time

seconds = float(os.environ.get("DSV4_SCHEMATHESIS_SECONDS", "60"))
end = time.monotonic() + seconds
scratch = tempfile.mkdtemp()  # It leaves a folder where it runs.
runs = 0
while time.monotonic() < end:
    runs += 1
    done = subprocess.run([os.path.join(os.path.dirname(sys.executable), "schemathesis"), "run", sys.argv[1] + "/openapi.json", "--checks", "not_a_server_error",
                           "--max-examples", "60", "--seed", str(runs), "--request-timeout", "120", "--workers", "4", "--suppress-health-check", "all"],
                          capture_output=True, text=True, cwd=scratch)
    if done.returncode != 0:
        # A failure stands far above the summary at the end.
        found = min((at for mark in ("= ERRORS =", "= FAILURES =") if (at := done.stdout.find(mark)) >= 0), default=0)
        print(f"run {runs} of seed {runs}:", done.stdout[found : found + 8000], done.stdout[-2000:], done.stderr[-2000:])
        sys.exit(1)
print(f"{runs} runs in {seconds:.0f} s, no server error")
