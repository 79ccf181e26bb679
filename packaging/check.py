"""Checks what packaging/package.py made: each is installed and answers; and two builds give the same bytes.

    check.py BINARY LIBRARY FOLDER [ROOT...]

ROOT: folders with another system (debootstrap), in which archive and .deb are tried by chroot; needs root.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = """import dsv4
llm = dsv4.LLM("{model}")
print(llm.chat([dict(role="user", content="What is the capital of France?")], sampling=dsv4.Sampling(temperature=0)))
"""
QUESTION = ("run", "-q", "--temperature", "0", "What is the capital of France?")


def answers(*command: str | Path, **options) -> float:
    """Runs a dsv4 and wants Paris; seconds."""
    begin = time.monotonic()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, **options)
    if done.returncode != 0 or "Paris" not in done.stdout:
        raise SystemExit(f"check: {command}: exit code {done.returncode}, {done.stdout!r}, {done.stderr!r}")
    return time.monotonic() - begin


def answers_in(system: Path, program: str) -> float:
    """The same in another root file system, with /proc as every container has it."""
    (system / "proc").mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "proc", "proc", str(system / "proc")], check=True)
    try:
        return answers("chroot", system, program, *QUESTION, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/"})
    finally:
        subprocess.run(["umount", str(system / "proc")], check=True)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def unpack(archive: Path, folder: Path) -> Path:
    subprocess.run(["tar", "--zstd", "-C", str(folder), "-xf", str(archive)], check=True)
    return next(folder.glob("dsv4-*"))


def check_c(tree: Path, folder: Path) -> None:
    """A C program against the archive's header and library."""
    library = next((tree / "lib").glob("libdsv4.so.*"))
    program = folder / "capi_test"
    subprocess.run(["gcc", "-std=c99", "-I", str(tree), str(HERE.parent / "tests" / "capi" / "capi_test.c"), str(library), "-o", str(program)],
                   check=True)
    answers(program, tree / "share/dsv4/models/tiny", HERE.parent / "tests" / "capi" / "abi.txt", env={"LD_LIBRARY_PATH": str(tree / "lib")})
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "dsv4"], capture_output=True, text=True, check=True,
                           env=os.environ | {"PKG_CONFIG_PATH": str(tree / "lib" / "pkgconfig")}).stdout.split()
    for source, compiler in (("chat.c", ("gcc", "-std=c99")), ("batch.cc", ("g++", "-std=c++20"))):
        program = folder / source.split(".")[0]
        subprocess.run([*compiler, str(tree / "share/doc/dsv4/examples" / source), *flags, "-o", str(program)], check=True)
        answers(program, tree / "share/dsv4/models/tiny", "The capital of France is", env={"LD_LIBRARY_PATH": str(tree / "lib")})
    print("C programs: they answer with the archive's header and library")


def check_cuda(binary: Path, home: str) -> None:
    """With a GPU the answer comes from it; without one the backend says so, and the CPU has answered already."""
    if Path("/dev/nvidiactl").exists():
        print(f"GPU: {answers(binary, *QUESTION, '--backend', 'cuda', env={'HOME': home}):.2f} s")
        return
    done = subprocess.run([binary, *QUESTION, "--backend", "cuda"], capture_output=True, text=True, check=False, env={"HOME": home})
    if done.returncode != 1 or "no NVIDIA device or driver" not in done.stderr:
        raise SystemExit(f"check: --backend cuda without a GPU: exit code {done.returncode}, {done.stdout!r}, {done.stderr!r}")
    print("GPU: none here, which --backend cuda says")


def check_tag(wheel: Path) -> None:
    """The tag of the wheel's name is the one that auditwheel reads from its symbols."""
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True, check=True).stdout
    tag = re.search(r'platform tag: "(\w+)"', " ".join(shown.split()))[1]
    if not wheel.name.endswith(f"-{tag}.whl"):
        raise SystemExit(f"check: {wheel.name}: auditwheel says {tag}")
    print(f"auditwheel: {tag}")


def check_image(image: Path, folder: Path) -> None:
    """Unpacks the layer as a container engine would, each digest checked, and runs its entry point there."""
    with tarfile.open(image) as tar:
        tar.extractall(folder / "image", filter="data")
    blobs = folder / "image" / "blobs" / "sha256"
    for blob in blobs.iterdir():
        if hashlib.sha256(blob.read_bytes()).hexdigest() != blob.name:
            raise SystemExit(f"check: {image}: blob {blob.name} has another digest")
    index = json.loads((folder / "image" / "index.json").read_text())
    manifest = json.loads((blobs / index["manifests"][0]["digest"].removeprefix("sha256:")).read_text())
    root = folder / "root"
    with tarfile.open(blobs / manifest["layers"][0]["digest"].removeprefix("sha256:")) as tar:
        tar.extractall(root, filter="tar")
    if os.geteuid() == 0:
        print(f"image: {answers_in(root, '/usr/bin/dsv4'):.2f} s")


def main() -> int:
    binary, library, made, *systems = map(Path, sys.argv[1:])
    archive, deb = next(made.glob("*.tar.zst")), next(made.glob("*.deb"))
    wheel, image = next(made.glob("*.whl")), next(made.glob("*-oci.tar"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin = time.monotonic()
        tree = unpack(archive, folder)
        answers(tree / "bin" / "dsv4", *QUESTION, env={"HOME": name})
        print(f"archive: unpacked and answered in {time.monotonic() - begin:.2f} s")
        if " cuda" in subprocess.run([tree / "bin" / "dsv4", "version"], capture_output=True, text=True, check=True).stdout:
            check_cuda(tree / "bin" / "dsv4", name)
        check_tag(wheel)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        subprocess.run([str(folder / "venv/bin/pip"), "install", "-q", "--no-index", "--disable-pip-version-check", str(wheel)], check=True)
        print(f"wheel: {answers(folder / 'venv/bin/dsv4', *QUESTION, env={'HOME': name}):.2f} s")
        answers(folder / "venv/bin/python", "-m", "dsv4", *QUESTION, env={"HOME": name})
        program = PYTHON.format(model=folder / "venv/share/dsv4/models/tiny")
        print(f"import dsv4: {answers(folder / 'venv/bin/python', '-c', program, cwd=name, env={'HOME': name}):.2f} s")
        check_c(tree, folder)
        check_image(image, folder)
        for system in systems:
            unpack(archive, system / "opt")
            print(f"{system.name}: {answers_in(system, f'/opt/{tree.name}/bin/dsv4'):.2f} s from the archive")
            shutil.rmtree(system / "opt" / tree.name)
            shutil.copy(deb, system / "tmp" / "dsv4.deb")
            subprocess.run(["chroot", str(system), "dpkg", "--force-depends", "-i", "/tmp/dsv4.deb"], check=True, stdout=subprocess.DEVNULL)
            print(f"{system.name}: {answers_in(system, 'dsv4'):.2f} s from the .deb")
            subprocess.run(["chroot", str(system), "dpkg", "-P", "dsv4"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([sys.executable, str(HERE / "package.py"), str(binary), str(library), str(folder / "again")], check=True, stdout=subprocess.DEVNULL)
        if digests(made) != digests(folder / "again"):
            raise SystemExit("check: a second build gives other bytes")
        print("a second build: the same bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
