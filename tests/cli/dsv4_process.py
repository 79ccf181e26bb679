"""Starting the binary under test, and reading what it writes."""

import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import time

os.environ.pop("DSV4_MODEL", None)  # Of whoever runs the tests.
os.environ["DSV4_CONFIG"] = ""
os.environ["DSV4_CONVERSATION"] = ""
BINARY = os.environ["DSV4_BINARY"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
TINY = ROOT / "models" / "tiny"
# How many times slower than the plain build the binary is.
SLOWNESS = float(os.environ.get("DSV4_TEST_SLOWNESS", "1"))
# Seconds after which something that happens at once has not happened. Long, so that a busy machine is not taken for a broken program.
PATIENCE = float(os.environ.get("DSV4_PATIENCE", "120")) * SLOWNESS


def wait_until(condition, what):
    """The first true value of `condition`, asked again and again; an error that says `what` when it never comes."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"after {PATIENCE:.0f} s still not: {what}")
        time.sleep(0.01)
    return value


def rerun_in_venv(requirements):
    """For packages that this Python lacks: goes on in .venv's from the beginning; there, or without a .venv, the test is skipped."""
    python = ROOT / ".venv" / "bin" / "python"
    if python.exists() and pathlib.Path(sys.prefix) != python.parents[1]:
        os.execv(python, [str(python), *sys.argv])
    print(f"skipped: the packages of {requirements} are not installed")
    sys.exit(77)


def dsv4(*arguments, stdin="", env=None):
    """Runs the binary to its end; the caller looks at returncode, stdout and stderr."""
    return subprocess.run([BINARY, *(word if isinstance(word, bytes) else str(word) for word in arguments)], input=stdin, capture_output=True, text=True,
                          env=os.environ | (env or {}), timeout=600, check=False)


def dsv4_json(*arguments, env=None):
    """The JSON document of a run that must succeed."""
    process = dsv4(*arguments, env=env)
    if process.returncode != 0:
        raise AssertionError(f"exit code {process.returncode}: {process.stderr}")
    return json.loads(process.stdout)


def free_port():
    """A port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def read_npy(path):
    """The bytes of a two-dimensional float32 .npy file and its shape."""
    data = pathlib.Path(path).read_bytes()
    if data[:8] != b"\x93NUMPY\x01\x00":
        raise AssertionError("not a version 1.0 .npy file")
    (length,) = struct.unpack("<H", data[8:10])
    header = eval(data[10:10 + length].decode(), {"__builtins__": {}})  # A Python literal by definition of the format.
    if header["descr"] != "<f4" or header["fortran_order"] or (10 + length) % 64 != 0:
        raise AssertionError(f"unexpected header {header}")
    return header["shape"], data[10 + length:]
