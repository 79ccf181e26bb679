#!/usr/bin/env python3
"""Prints what the house measures itself by, one row a figure, beside its goal.

The rows are include rules that are left, sizes of large classes, lines of code, form of comments, and bytes of pages.
tests/house checks those that only shrink. This table says how far all of them are.

  tools/house_figures.py [--json]
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/house")]
import language_test  # noqa: E402

import check_includes  # noqa: E402

# A path of V4.1 alone: its plans, its hashes and tables, and its op. What it added to files of all is not told apart.
OF_V41 = re.compile(r"v41|engram")
DATE_OR_HASH = re.compile(r"\b20\d\d-\d\d-\d\d\b|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b")


@dataclass
class Figure:
    """One row: a number and the most that it should be, None where there is no goal."""

    name: str
    value: int
    goal: int | None = None


def without_comments(text: str) -> str:
    """The source without comments; strings stay."""
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.DOTALL)
    return pattern.sub(lambda match: match[0] if match[0].startswith('"') else "", text)


def body(text: str, opening: str) -> str:
    """The text between the braces that the first match of `opening` ends with; an error without one."""
    match = re.search(opening, text)
    if match is None:
        raise ValueError(f"no source matches {opening!r}: mend tools/house_figures.py")
    depth, end = 1, match.end()
    while depth > 0:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[match.end():end - 1]


def private_functions(header: str, name: str) -> int:
    """Functions that a class declares for itself; those of structs inside of it do not count."""
    text = body(without_comments(header), rf"\bclass {name}\b[^;{{]*{{")
    _, _, hidden = text.partition("private:")
    while (flat := re.sub(r"\{[^{}]*\}", ";", hidden)) != hidden:
        hidden = flat
    statements = [" ".join(statement.split()) for statement in hidden.split(";")]
    return sum(bool(re.search(r"\b[A-Z]\w*\(", statement.split("=")[0])) for statement in statements)


def include_figures() -> list[Figure]:
    """Includes between rooms against tools/rooms.json, and the rooms that reach each other both ways."""
    against, circles = 0, 0
    for module, rows in check_includes.read_rooms(ROOT).items():
        edges = check_includes.room_edges(ROOT, Path(module), set(rows["may_include"]))
        against += sum(len(places) for (room, other), places in edges.items() if other not in rows["may_include"].get(room, []))
        circles += sum(room < other and (other, room) in edges for room, other in edges)
    return [Figure("includes against the table of rooms", against, 0), Figure("pairs of rooms that include each other", circles, 0)]


def class_figures() -> list[Figure]:
    """Lines of the headers and functions that were too long to hold."""
    engine, source, model = ((ROOT / path).read_text() for path in ("src/engine/engine.h", "src/engine/engine.cc", "src/model/runtime/model.h"))
    step = body(source, r"std::vector<Event> Engine::Step\(\) \{") + body(source, r"void Engine::Step\([^)]*\) \{")
    return [
        Figure("lines of engine.h", len(engine.splitlines()), 150),
        Figure("lines of Engine::Step", len(step.strip().splitlines()) + 4, 40),
        Figure("lines of model.h", len(model.splitlines()), 180),
        Figure("private functions of Engine", private_functions(engine, "Engine")),
        Figure("private functions of Model", private_functions(model, "Model")),
    ]


def line_figures() -> list[Figure]:
    """Lines of src and apps without tests: all of them, and code alone, with and without what V4.1 adds."""
    lines: collections.Counter[str] = collections.Counter()
    for path in check_includes.source_files(ROOT):
        if check_includes.TEST_FILE.search(path.name):
            continue
        text = (ROOT / path).read_text(errors="replace")
        code = sum(bool(line.strip()) for line in without_comments(text).splitlines())
        for kind in ("all", "V4.1" if OF_V41.search(str(path)) else "rest"):
            lines[kind] += len(text.splitlines())
            lines[f"{kind} code"] += code
    return [
        Figure("lines of src and apps, tests apart", lines["all"]),
        Figure("  without what V4.1 adds", lines["rest"], 120_000),
        Figure("  code alone, no comment, no empty line", lines["all code"]),
        Figure("  code alone, without what V4.1 adds", lines["rest code"]),
    ]


def comment_figures() -> list[Figure]:
    """Comments by the faults of their form, tests and bench included, and sources without an opening line."""
    count = collections.Counter(kind for (kind, _), places in language_test.faults().items() for _ in places)
    comments = silent = 0
    for path in check_includes.source_files(ROOT):
        text = (ROOT / path).read_text(errors="replace")
        comments += len(language_test.comments(text))
        silent += path.suffix in {".cc", ".cu"} and bool(language_test.opening_fault(str(path), text))
    return [
        Figure("comments of src and apps", comments),
        Figure("comments that open with Of, What, Those, Whose, That or Where", count["opening"], 0),
        Figure(f"sentences of more than {language_test.MOST_WORDS} words", count["long"], 0),
        Figure("sources without a line that says what they are", silent, 0),
    ]


def page_figures() -> list[Figure]:
    """Bytes of docs/, its largest page, and guides that have a date or a hash."""
    pages = {path.relative_to(ROOT): path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}
    sizes = [len(text.encode()) for text in pages.values()]
    guides = [text for path, text in pages.items() if "specification" not in path.parts]
    return [
        Figure("bytes of docs/", sum(sizes), 330 * 1024),
        Figure("  of the largest page", max(sizes), 12_000),
        Figure("  guides with a date or a hash", sum(bool(DATE_OR_HASH.search(text)) for text in guides), 0),
    ]


def figures() -> list[Figure]:
    """All rows."""
    return [*include_figures(), *class_figures(), *line_figures(), *comment_figures(), *page_figures()]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="a list of {name, value, goal}")
    rows = figures()
    if parser.parse_args().json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    print(f"{'figure':58} {'now':>8} {'goal':>8}")
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal:8}"
        print(f"{row.name:58} {row.value:8} {goal}{'' if row.goal is None or row.value <= row.goal else '  over'}")


if __name__ == "__main__":
    main()
