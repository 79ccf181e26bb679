"""Links build/PRESET/dsv4, or its libdsv4.so, once more, for every Linux x86-64 with glibc 2.28 or later.

The objects are those of the tests. Only the link differs: third-party libraries and g++'s run time are static, and the C library that
the linker sees is the stub of glibc 2.28 that zig brings (PyPI's ziglang). packaging/glibc_2_28.c has the functions that g++'s run time
takes from a newer one.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLIBC = (2, 28)
# What a machine with a GPU driver or without one has: the C library and the loader.
ALLOWED = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2", "libutil.so.1", "ld-linux-x86-64.so.2"}
# A static library's own needs, which a shared one carries with it.
NEEDS = {"libcurl": ["libssl", "libcrypto"], "libedit": ["libtinfo", "libbsd", "libmd"]}


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, text=True, **options)


def static_library(name: str, made: Path) -> Path:
    """lib.a of ours, else Debian's."""
    for folder in (made, Path("/usr/lib/x86_64-linux-gnu")):
        if (path := folder / f"{name}.a").exists():
            return path
    raise SystemExit(f"link_portable: no static {name}.a in {made} or of Debian")


def link_inputs(build: Path, made: Path, shared: bool) -> list[str]:
    """Objects, archives and what stands around them in ninja's link command, shared libraries replaced by static ones, in its order."""
    target = "libdsv4.so" if shared else "dsv4"
    commands = run("ninja", "-C", build, "-t", "commands", target, capture_output=True).stdout.splitlines()
    command = next(line for line in reversed(commands) if " -o " in line and " -c " not in line)
    words = shlex.split(command.replace("&&", " "))
    inputs = []
    for word in words:
        if word.endswith((".o", ".a")) or re.match(r"-Wl,(--(no-)?whole-archive|--version-script=.*|-soname,.*)$", word):
            inputs.append(word)
        elif found := re.search(r"/(lib[\w.+-]+?)\.so[\d.]*$", word):
            inputs += [str(static_library(name, made)) for name in (found[1], *NEEDS.get(found[1], []))]
    return inputs


def gcc_file(name: str) -> str:
    return run("g++", f"-print-file-name={name}", capture_output=True).stdout.strip()


def check(binary: Path, shared: bool) -> None:
    """Only the C library, and nothing of it newer than GLIBC."""
    dynamic = run("readelf", "-d", binary, capture_output=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    if unknown := needed - ALLOWED:
        raise SystemExit(f"link_portable: {binary} needs {', '.join(sorted(unknown))}")
    symbols = run("objdump", "-T", binary, capture_output=True).stdout
    versions = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_(2\.\d+(?:\.\d+)?)", symbols)}
    if newer := {version for version in versions if version[:2] > GLIBC}:
        raise SystemExit(f"link_portable: {binary} wants glibc {max(newer)}, the most is {GLIBC}")
    if re.search(r"GLIBCXX_|CXXABI_", symbols):
        raise SystemExit(f"link_portable: {binary} wants a shared libstdc++")
    if shared:
        run(sys.executable, ROOT / "tests" / "capi" / "check_symbols.py", binary, ROOT / "tests" / "capi" / "symbols.txt")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path, help="build/release or build/cuda; for a library build/shared")
    parser.add_argument("made", type=Path, help="folder of static libraries that Debian does not have")
    parser.add_argument("output", type=Path, help="a library where it ends in .so")
    arguments = parser.parse_args()
    build, made, shared = arguments.build.resolve(), arguments.made.resolve(), arguments.output.suffix == ".so"
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    compat = made / "glibc_2_28.o"
    run("gcc", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-c", ROOT / "packaging" / "glibc_2_28.c", "-o", compat)
    runtime = [gcc_file(name) for name in ("libstdc++.a", "libgcc.a", "libgcc_eh.a")]
    run(sys.executable, "-m", "ziglang", "cc", "-target", f"x86_64-linux-gnu.{GLIBC[0]}.{GLIBC[1]}", "-s", "-Wl,--gc-sections",
        "-Wl,--build-id=none", *(["-shared"] if shared else []), "-o", arguments.output.resolve(), "-Wl,--start-group",
        *link_inputs(build, made, shared), compat, *runtime,
        "-Wl,--end-group", "-lpthread", "-ldl", "-lrt", "-lm", "-lresolv", cwd=build)
    check(arguments.output, shared)
    return 0


if __name__ == "__main__":
    sys.exit(main())
