"""A struct, a symbol or a meaning that changes needs a new number.

    abi_test.py HEADER ARCHIVE FOLDER [--write]

Compares include/dsv4.h, as the compiler sees it, with FOLDER/surface.txt: every struct field by field, every enumerator, every function.
Compares the functions that ARCHIVE, the static library, defines with FOLDER/symbols.txt. --write renews both lists. That wants another
DSV4_ABI than the one they were written for.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HEADER, ARCHIVE, FOLDER = (pathlib.Path(argument) for argument in sys.argv[1:4])


def surface(header: pathlib.Path) -> list[str]:
    """"abi N", then every declaration of the header in one line."""
    text = subprocess.run(["gcc", "-std=c99", "-E", "-x", "c", str(header)], check=True, capture_output=True, text=True).stdout
    own, inside = [], False
    for line in text.splitlines():
        if marker := re.match(r'# \d+ "([^"]*)"', line):
            inside = pathlib.Path(marker[1]).name == header.name
        elif inside:
            own.append(line)
    (number,) = re.findall(r"^#define DSV4_ABI (\d+)$", header.read_text(encoding="utf-8"), re.MULTILINE)
    lines, depth, current = [f"abi {number}"], 0, ""
    for character in " ".join(own):
        depth += {"{": 1, "}": -1}.get(character, 0)
        current += character
        if character == ";" and depth == 0:
            lines.append(re.sub(r"\s+", " ", current).strip())
            current = ""
    return lines


def symbols(archive: pathlib.Path) -> list[str]:
    """The functions that it defines under their C names."""
    listing = subprocess.run(["nm", "--defined-only", "-g", str(archive)], check=True, capture_output=True, text=True).stdout
    return sorted(set(re.findall(r" T (dsv4_\w+)$", listing, re.MULTILINE)))


def difference(got: list[str], wanted: list[str]) -> list[str]:
    return [f"new:  {line}" for line in got if line not in wanted] + [f"gone: {line}" for line in wanted if line not in got]


class Abi(unittest.TestCase):
    maxDiff = None

    def check(self, name: str, got: list[str]) -> None:
        wanted = (FOLDER / name).read_text(encoding="utf-8").splitlines()
        if name == "symbols.txt":
            wanted = sorted(wanted)
        changed = difference(got, wanted)
        self.assertFalse(changed, f"{name}: the C API is not the one of ABI number {surface(HEADER)[0]}. Give DSV4_ABI a new number, "
                                  "then: abi_test.py HEADER ARCHIVE FOLDER --write\n" + "\n".join(changed))
        self.assertEqual(got, wanted, "the order of the fields")

    def test_declarations(self):
        self.check("surface.txt", surface(HEADER))

    def test_symbols(self):
        self.check("symbols.txt", symbols(ARCHIVE))

    def test_every_function_is_declared(self):
        declared = {match for line in surface(HEADER) for match in re.findall(r"\b(dsv4_\w+)\(", line)}
        self.assertEqual(declared, set(symbols(ARCHIVE)))

    def test_the_python_package_has_the_number(self):
        package = (HEADER.parents[1] / "python" / "dsv4" / "__init__.py").read_text(encoding="utf-8")
        self.assertIn(f"ABI = {surface(HEADER)[0].removeprefix('abi ')}\n", package)

    def test_a_changed_field_is_seen(self):
        copy = HEADER.read_text(encoding="utf-8").replace("float min_p;", "double min_p;")
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / HEADER.name
        path.write_text(copy, encoding="utf-8")
        self.assertEqual(len(difference(surface(path), surface(HEADER))), 2)


def write() -> int:
    lists = {"surface.txt": surface(HEADER), "symbols.txt": symbols(ARCHIVE)}
    old = FOLDER / "surface.txt"
    if old.exists() and old.read_text(encoding="utf-8").splitlines()[0] == lists["surface.txt"][0]:
        changed = difference(lists["surface.txt"], old.read_text(encoding="utf-8").splitlines())
        if changed:
            print(f"abi_test: {lists['surface.txt'][0]} has another surface already; DSV4_ABI needs a new number\n" + "\n".join(changed))
            return 1
    for name, lines in lists.items():
        (FOLDER / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    if "--write" in sys.argv:
        sys.exit(write())
    unittest.main(argv=sys.argv[:1])
