#!/usr/bin/env python3
"""Checks that the source tree obeys the tables in docs/.

docs/architecture.md, "Modules": which module may include which. Every `#include "..."` below src/ and apps/, and the
DEPS of every module's CMakeLists.txt, must follow it. Every folder with sources must have a row, and rows no cycle.
docs/dependencies.md, "Libraries": which module may include which third-party header.
tools/rooms.json: which room (folder) of a module may include which, and how many includes against that are left. A number only
shrinks; --shrink writes the numbers of today where they are lower.

Prints one line per violation: file:line: what, and what the table wants. Exit status 0 clean, 1 violations, 2 a table
that cannot be read.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# A header of the C++ library has neither folder nor suffix; these are the C library's and the system's.
SYSTEM_HEADER = re.compile(
    r"^([a-z0-9_]+|sys/[a-z_]+\.h|linux/[a-z_]+\.h|"
    r"(arpa/inet|dlfcn|errno|fcntl|immintrin|langinfo|link|malloc|netdb|netinet/in|poll|pthread|sched|signal|spawn|termios|time|unistd|x86intrin|cpuid)\.h)$"
)
SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
# Unit tests stand beside the code they test, in its module; testing.h is what they share.
TEST_FILE = re.compile(r"(_test|(^|_)testing)\.(h|cc)$")
PUBLIC_HEADER = "include/dsv4.h"  # Of the C API; capi implements it.
EVERYTHING = "everything"
NOTHING = "nothing"


class TableError(Exception):
    """A table in docs/ is missing or malformed."""


@dataclass
class Module:
    """One row of the module table."""

    name: str
    level: int
    may_include: set[str]


@dataclass
class Library:
    """One row of the library table: header prefixes and the modules that may include them."""

    name: str
    headers: list[str]
    modules: set[str]


@dataclass
class Declared:
    """Declarations of a module's CMakeLists.txt."""

    file: Path
    deps: set[str] = field(default_factory=set)


def read_table(text: str, heading: str, columns: list[str], where: str) -> list[dict[str, str]]:
    """Returns the rows of the first Markdown table below `heading` as dictionaries of plain text."""
    sections = re.split(rf"^#+ {re.escape(heading)}\s*$", text, flags=re.MULTILINE)
    if len(sections) != 2:
        raise TableError(f"{where}: wanted exactly one heading '{heading}', got {len(sections) - 1}")
    lines = []
    for line in sections[1].splitlines():
        if line.startswith("|"):
            lines.append(line)
        elif lines or line.startswith("#"):
            break
    cells = [[cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")] for line in lines]
    if len(cells) < 3 or cells[0] != columns:
        raise TableError(f"{where}: the table below '{heading}' must have rows and the columns {columns}")
    for row in cells[2:]:
        if len(row) != len(columns):
            raise TableError(f"{where}: row {row} has {len(row)} cells, wanted {len(columns)}")
    return [dict(zip(columns, row, strict=True)) for row in cells[2:]]


def split_names(cell: str) -> set[str]:
    """'base, tensor' as a set."""
    return {name for name in re.split(r",\s*", cell) if name}


def read_modules(root: Path) -> dict[str, Module]:
    """Reads the module table and checks that it is one: known names, no cycle, no edge upwards."""
    where = "docs/architecture.md"
    rows = read_table((root / where).read_text(), "Modules", ["Level", "Module", "May include", "Must never see"], where)
    modules: dict[str, Module] = {}
    for row in rows:
        name = row["Module"]
        if name in modules:
            raise TableError(f"{where}: module {name} has two rows")
        if not row["Level"].isdigit():
            raise TableError(f"{where}: module {name} has level '{row['Level']}', wanted a number")
        modules[name] = Module(name, int(row["Level"]), split_names(row["May include"]))
    for module in modules.values():
        if EVERYTHING in module.may_include:
            module.may_include = set(modules) - {module.name}
        module.may_include.discard(NOTHING)
        for other in sorted(module.may_include):
            if other not in modules:
                raise TableError(f"{where}: {module.name} may include {other}, which has no row")
            if modules[other].level > module.level:
                raise TableError(f"{where}: {module.name} (level {module.level}) may not include {other} "
                                 f"(level {modules[other].level}): edges go down")
    check_acyclic(modules, where)
    return modules


def check_acyclic(modules: dict[str, Module], where: str) -> None:
    """Raises TableError when two modules may include each other, directly or not."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            raise TableError(f"{where}: cycle {' -> '.join([*path[path.index(name):], name])}")
        if name in done:
            return
        for other in sorted(modules[name].may_include):
            visit(other, [*path, name])
        done.add(name)

    for name in sorted(modules):
        visit(name, [])


def read_libraries(root: Path, modules: dict[str, Module]) -> list[Library]:
    """Reads the library table."""
    where = "docs/dependencies.md"
    columns = ["Library", "Debian package", "Headers", "Used by", "Why"]
    libraries = []
    for row in read_table((root / where).read_text(), "Libraries", columns, where):
        users = split_names(row["Used by"])
        if unknown := users - set(modules) - {"tests", "bench", EVERYTHING}:
            raise TableError(f"{where}: {row['Library']} is used by {', '.join(sorted(unknown))}, which has no row in "
                             "docs/architecture.md")
        libraries.append(Library(row["Library"], sorted(split_names(row["Headers"])), users))
    return libraries


def source_files(root: Path) -> list[Path]:
    """Every C++ and CUDA file of the modules, relative to root."""
    return sorted(path.relative_to(root) for top in ("src", "apps") for path in (root / top).rglob("*")
                  if path.suffix in SOURCE_SUFFIXES)


def module_of(path: Path, modules: dict[str, Module]) -> str | None:
    """The module a path relative to the root belongs to: the longest row that names one of its folders."""
    parts = path.parent.parts
    if parts and parts[0] == "src":
        parts = parts[1:]
    for length in range(len(parts), 0, -1):
        name = "/".join(parts[:length])
        if name in modules:
            return name
    return None


def read_cmake(root: Path, modules: dict[str, Module]) -> tuple[dict[str, Declared], list[str]]:
    """Reads NAME and DEPS of every dsv4_module() call; the folder of the file is the module."""
    calls: list[tuple[str, Path, list[str]]] = []
    names: dict[str, str] = {}
    problems = []
    for file in sorted([*root.glob("src/**/CMakeLists.txt"), *root.glob("apps/**/CMakeLists.txt")]):
        relative = file.relative_to(root)
        text = re.sub(r"#.*", "", file.read_text())
        for body in re.findall(r"\bdsv4_module\s*\(([^)]*)\)", text):
            name = re.search(r"\bNAME\s+(\S+)", body)
            module = module_of(relative, modules)
            if name is None or module is None:
                problems.append(f"{relative}: dsv4_module() in a folder without a row in docs/architecture.md")
                continue
            deps = re.search(r"\bDEPS\s+((?:[a-z0-9_]+\s*)+)", body)
            names[name.group(1)] = module
            calls.append((module, relative, deps.group(1).split() if deps else []))
    declared: dict[str, Declared] = {}
    for module, relative, deps in calls:
        entry = declared.setdefault(module, Declared(relative))
        for dep in deps:
            if dep not in names:
                problems.append(f"{relative}: DEPS {dep} names no dsv4_module()")
            elif names[dep] != module:
                entry.deps.add(names[dep])
    return declared, problems


def check_tree(root: Path) -> list[str]:
    """Returns every violation below root, as printable lines."""
    modules = read_modules(root)
    libraries = read_libraries(root, modules)
    declared, problems = read_cmake(root, modules)
    used: dict[str, set[str]] = {name: set() for name in modules}

    for path in source_files(root):
        module = module_of(path, modules)
        if module is None:
            problems.append(f"{path}: its folder has no row in docs/architecture.md")
            continue
        for number, line in enumerate((root / path).read_text(errors="replace").splitlines(), 1):
            if match := INCLUDE.match(line):
                where, header = f"{path}:{number}", match.group(2)
                is_test = bool(TEST_FILE.search(path.name))
                if match.group(1) == "<":
                    problems += check_angle(where, header, module, libraries, is_test)
                else:
                    problems += check_quoted(root, where, header, modules[module], modules, used[module], is_test)

    for name, entry in sorted(declared.items()):
        for dep in sorted(entry.deps - modules[name].may_include):
            problems.append(f"{entry.file}: DEPS {dep}, but {name} may include only "
                            f"{', '.join(sorted(modules[name].may_include)) or NOTHING}")
        for dep in sorted(used[name] - entry.deps):
            problems.append(f"{entry.file}: {name} includes {dep} but DEPS does not name it")
        for dep in sorted(entry.deps - used[name]):
            problems.append(f"{entry.file}: DEPS {dep}, but no source file of {name} includes it")
    return problems


def room_of(path: Path, top: Path, rooms: set[str]) -> str | None:
    """The room of a file of a module: the deepest folder of `rooms` that it is in, else its first folder below the module.

    "." for files beside the rooms, None outside of the module.
    """
    if not path.is_relative_to(top):
        return None
    parts = path.relative_to(top).parts[:-1]
    for length in range(len(parts), 1, -1):
        if "/".join(parts[:length]) in rooms:
            return "/".join(parts[:length])
    return parts[0] if parts else "."


def room_edges(root: Path, top: Path, rooms: set[str]) -> dict[tuple[str, str], list[str]]:
    """The includes between rooms of a module, tests apart: places by (room, room it includes)."""
    edges: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for path in source_files(root):
        room = room_of(path, top, rooms)
        if room is None or TEST_FILE.search(path.name):
            continue
        for number, line in enumerate((root / path).read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match or match.group(1) == "<":
                continue
            for base in ("src", ""):
                target = Path(base) / match.group(2)
                if (root / target).is_file():
                    other = room_of(target, top, rooms)
                    if other is not None and other != room:
                        edges[room, other].append(f"{path}:{number}")
                    break
    return edges


def read_rooms(root: Path) -> dict[str, dict]:
    """The table of rooms. A row's edges must not go round."""
    where = "tools/rooms.json"
    if not (root / where).is_file():
        return {}
    table = json.loads((root / where).read_text())
    for module, rows in table.items():
        unknown = {other for edges in rows["may_include"].values() for other in edges} - set(rows["may_include"])
        if unknown:
            raise TableError(f"{where}: {module}: {', '.join(sorted(unknown))} has no row")
        check_acyclic({name: Module(name, 0, set(edges)) for name, edges in rows["may_include"].items()}, f"{where}: {module}")
    return table


def check_rooms(root: Path, shrink: bool = False) -> list[str]:
    """Returns includes between rooms that no row allows, where there are more than the list has."""
    table = read_rooms(root)
    problems = []
    for module, rows in table.items():
        left = rows["left"]
        edges = room_edges(root, Path(module), set(rows["may_include"]))
        for (room, other), places in sorted(edges.items()):
            if room not in rows["may_include"] or other not in rows["may_include"]:
                problems.append(f"{places[0]}: room {room if room not in rows['may_include'] else other} of {module} has no row "
                                "in tools/rooms.json")
            elif other not in rows["may_include"][room] and len(places) > left.get(f"{room} -> {other}", 0):
                problems.append(f"{places[-1]}: {module}/{room} may not include {other} (tools/rooms.json): {len(places)} includes, "
                                f"{left.get(f'{room} -> {other}', 0)} are left")
        if shrink:
            found = {f"{room} -> {other}": len(places) for (room, other), places in edges.items()}
            rows["left"] = {edge: min(count, found[edge]) for edge, count in left.items() if edge in found}
    if shrink:
        (root / "tools/rooms.json").write_text(json.dumps(table, indent=1) + "\n")
    return problems


def check_quoted(root: Path, where: str, header: str, module: Module, modules: dict[str, Module], used: set[str],
                 is_test: bool) -> list[str]:
    """Checks one #include "..." line; adds the module it may reach to `used` unless only a test needs it."""
    if header == PUBLIC_HEADER and module.name == "capi":
        return []
    for base in ("src", ""):
        path = Path(base) / header
        if ".." not in path.parts and (root / path).is_file():
            break
    else:
        return [f'{where}: #include "{header}": no such file below src/ or the root; write the path from there']
    target = module_of(path, modules)
    if target is None:
        return [] if is_test and path.parts[0] == "tests" else [
            f'{where}: #include "{header}" reaches a folder without a row in docs/architecture.md']
    if target == module.name:
        return []
    if target in module.may_include:
        if not is_test:
            used.add(target)
        return []
    return [f'{where}: #include "{header}": {module.name} may not include {target}, only '
            f"{', '.join(sorted(module.may_include)) or NOTHING}"]


def check_angle(where: str, header: str, module: str, libraries: list[Library], is_test: bool) -> list[str]:
    """Checks one #include <...> line against the library table."""
    for library in libraries:
        if any(header == prefix or (prefix.endswith("/") and header.startswith(prefix)) for prefix in library.headers):
            if module in library.modules or EVERYTHING in library.modules:
                return []
            if "tests" in library.modules and is_test:
                return []
            return [f"{where}: #include <{header}>: {library.name} may be used by "
                    f"{', '.join(sorted(library.modules))}, not by {module}"]
    if SYSTEM_HEADER.match(header):
        return []
    return [f"{where}: #include <{header}>: no row of docs/dependencies.md names it"]


def main() -> int:
    """Runs the check on the tree this file belongs to, or on --root."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--shrink", action="store_true", help="write the numbers of tools/rooms.json that are lower today")
    args = parser.parse_args()
    root = args.root
    try:
        problems = check_tree(root) + check_rooms(root, args.shrink)
    except (TableError, OSError) as error:
        print(f"check_includes: {error}", file=sys.stderr)
        return 2
    for problem in problems:
        print(problem)
    print(f"check_includes: {len(source_files(root))} files, {len(problems)} violations", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
