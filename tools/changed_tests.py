#!/usr/bin/env python3
"""Names the tests of a build folder whose program, script or binary under test is newer than a file: what `./dev test --changed` runs.

    changed_tests.py BUILD STAMP

Prints one name a line. Without STAMP there is no last run, and all are named.
"""
import json
import pathlib
import subprocess
import sys


def used_files(test: dict) -> list[pathlib.Path]:
    """Files that a test's command, working folder and environment name."""
    properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
    folder = pathlib.Path(properties.get("WORKING_DIRECTORY", "."))
    words = list(test.get("command", []))
    if "unittest" in words:
        words.append(f"{words[-1]}.py")
    values = [value.split("=", 1)[1] for value in properties.get("ENVIRONMENT", []) if "=" in value]
    paths = [folder / word for word in words + values if word and not word.startswith("-")]
    return [path for path in paths if path.is_file() and not path.is_relative_to("/usr")]


def main() -> int:
    """Prints the names."""
    build, stamp = map(pathlib.Path, sys.argv[1:3])
    listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout
    since = stamp.stat().st_mtime if stamp.exists() else 0.0
    for test in json.loads(listed)["tests"]:
        if any(path.stat().st_mtime > since for path in used_files(test)):
            print(test["name"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
