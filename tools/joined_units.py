"""Which sources of a module may be compiled as one unit: those whose private names meet no other's.

    joined_units.py BYTES FILE...

Prints a line for each file: its group and the file. A group has about BYTES of source. Private are names at the left margin inside an unnamed
namespace or behind `static`, and macros. Two files are never in one group where they share one, or where one's stands in a header of the other.
"""
import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
NAME = re.compile(r"\b([A-Za-z_]\w*)(?=\(|\[| = |\{|;| \{|$| :| final)")
NO_NAMES = {"namespace", "requires", "template"}


def declared(lines):
    """The name that each line at the left margin declares."""
    names = set()
    for line in lines:
        if line[:1] in ("", " ", "}", "#", "/", ")"):
            continue
        plain = line.split("//")[0]
        while plain != (plain := re.sub(r"<[^<>]*>", "", plain)):  # Arguments of templates, from the inside.
            pass
        if match := NAME.search(plain):
            names.add(match[1])
    return names - NO_NAMES


def private_names(text):
    """The names that a file keeps to itself."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("namespace {"):
            inside = True
        elif line.startswith("}  // namespace"):
            inside = False
        elif inside or line.startswith("static "):
            lines.append(line)
    return declared(lines) | set(re.findall(r"^#define (\w+)", text, re.M))


@functools.cache
def header_names(header):
    """Names declared in one of our headers and in those that it includes."""
    path = next((place for place in (ROOT / "src" / header, ROOT / header) if place.is_file()), None)
    if path is None:
        return frozenset()
    text = path.read_text(encoding="utf-8")
    return frozenset(declared(text.splitlines())).union(*map(header_names, re.findall(r'^#include "([^"]+)"', text, re.M)))


def main():
    limit, groups = int(sys.argv[1]), []
    for name in sys.argv[2:]:
        text = pathlib.Path(name).read_text(encoding="utf-8")
        private = private_names(text)
        seen = frozenset().union(*map(header_names, re.findall(r'^#include "([^"]+)"', text, re.M)))
        for number, group in enumerate(groups):  # noqa: B007 - used behind the loop
            if group["bytes"] + len(text) <= limit and not private & (group["private"] | group["seen"]) and not seen & group["private"]:
                break
        else:
            number, group = len(groups), {"bytes": 0, "private": set(), "seen": set()}
            groups.append(group)
        group["bytes"] += len(text)
        group["private"] |= private
        group["seen"] |= seen
        print(f"{number} {name}")


if __name__ == "__main__":
    main()
