#!/usr/bin/env python3
"""Real clients from PyPI against `dsv4 serve`, each in a virtual environment of its own: `./dev test --clients [NAME...]`.

A client is a file beside this one, with its pinned packages in the first line ("# pip: ..."), or the program of Debian that it is ("# debian: ...").
It gets the server's address as its argument and exits with 0 when all is well. Prints a table; exits with 1 when a client failed, with 77 when all that were
asked for lack a program or a library of Debian. `./dev test -L clients` runs each as a test of its own.
"""

import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VENVS = ROOT / "build" / "clients"


def environment(path):
    """The Python of the client's environment, made on demand; none where its program of Debian is not installed."""
    kind, _, packages = path.read_text().splitlines()[0].removeprefix("# ").partition(":")
    packages = packages.split()
    if kind == "debian":
        return pathlib.Path(sys.executable) if all(map(shutil.which, packages)) else None
    folder = VENVS / path.stem
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text() != " ".join(packages):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True)
        stamp.write_text(" ".join(packages))
    return folder / "bin" / "python"


def main():
    from server_process import Server

    names = sys.argv[1:] or sorted(path.stem for path in HERE.glob("client_*.py"))
    failed, ran = [], 0
    # An answer that nobody bounds would go in circles until the context is full, longer than clients wait.
    bounds = [word for kind in ("chat", "thinking", "max-effort") for word in (f"--max-tokens-{kind}", 512)]
    with Server("--max-sequences", 16, "--context", 8192, "--alias", "*", *bounds) as server:
        for name in names:
            path = HERE / (name if name.startswith("client_") else "client_" + name)
            path = path.with_suffix(".py")
            start = time.monotonic()
            try:
                python = environment(path)
            except subprocess.CalledProcessError as error:
                print(f"{name:24} not installed: {error}")
                failed.append(name)
                continue
            if python is None:
                print(f"{name:24} skipped: its program is not installed")
                continue
            done = subprocess.run([python, path, server.url], capture_output=True, text=True, timeout=1500)
            if done.returncode == 77:
                print(f"{name:24} {done.stdout.strip()}")
                continue
            ran += 1
            print(f"{name:24} {'ok' if done.returncode == 0 else 'FAILED'} in {time.monotonic() - start:.0f} s"
                  f"  {done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ''}", flush=True)
            if done.returncode != 0:
                failed.append(name)
                print(done.stdout[-3000:], done.stderr[-3000:])
    return 1 if failed else 0 if ran else 77


if __name__ == "__main__":
    sys.exit(main())
