# pip: --no-deps bfcl-eval==2026.3.23 jsonschema==4.26.0 jsonschema-specifications==2025.9.1 referencing==0.37.0 rpds-py==0.30.0 attrs==26.1.0 typing-extensions==4.15.0
"""The Berkeley function calling leaderboard's simple and parallel requests: every call satisfies its schema (tests/cli/bfcl_test.py). All requests with
BFCL_REQUESTS=0; its own command line is not installed, which wants PyTorch."""

import pathlib
import re
import subprocess
import sys

test = pathlib.Path(__file__).parents[1] / "cli" / "bfcl_test.py"
done = subprocess.run([sys.executable, test, "-v"], capture_output=True, text=True)
assert done.returncode == 0, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
print("; ".join(re.findall(r"BFCL\S+: .*", done.stdout + done.stderr)))
