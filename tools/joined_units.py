"""Which sources of a module may be compiled as one unit: those whose private names meet no other's.

    joined_units.py BYTES FILE...

Prints a line for each file: its group and the file. A group has about BYTES of source. Private are names at the left margin inside an unnamed
namespace or behind `static`, and macros. Two files are never in one group where they share one, or where one's stands in a header of the other.
The same alias in both, as `using Clock = ...`, is none: C++ lets it be said again.
"""
import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
ALIAS = re.compile(r"(?:namespace|using) (?:[\w:]*::)?(\w+)(?: = [^;{]+)?;")
NAME = re.compile(r"\b([A-Za-z_]\w*)(?=\(|\[| = |\{|;| \{|$| :| final)")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
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
    """The names that a file keeps to itself, and how each is declared: an alias by its line, all else by nothing."""
    lines, aliases, inside = [], {}, False
    for line in text.splitlines():
        if line.startswith("namespace {"):
            inside = True
        elif line.startswith("}  // namespace"):
            inside = False
        elif alias := ALIAS.match(line):
            aliases[alias[1]] = alias[0]
        elif inside or line.startswith("static "):
            lines.append(line)
    return aliases | dict.fromkeys(declared(lines) | set(re.findall(r"^#define (\w+)", text, re.M)))


@functools.cache
def header_names(header):
    """Names declared in one of our headers and in those that it includes."""
    path = next((place for place in (ROOT / "src" / header, ROOT / header) if place.is_file()), None)
    if path is None:
        return frozenset()
    text = path.read_text(encoding="utf-8")
    return frozenset(declared(text.splitlines())).union(*map(header_names, INCLUDE.findall(text)))


def unit_of(name):
    """What joins a file with others: its bytes, its private names, and those that its headers declare."""
    text = pathlib.Path(name).read_text(encoding="utf-8")
    return {"bytes": len(text), "private": private_names(text), "seen": frozenset().union(*map(header_names, INCLUDE.findall(text)))}


def meet(one, other):
    """Whether a private name of one of two units would be one of the other's too."""
    shared = one["private"].keys() & other["private"].keys()
    if any(one["private"][name] is None or one["private"][name] != other["private"][name] for name in shared):
        return True
    # `using a::Name;` declares what a header has.
    own = [{name for name, alias in unit["private"].items() if alias is None or " = " in alias} for unit in (one, other)]
    return bool(own[0] & other["seen"] or own[1] & one["seen"])


def main():
    limit, groups, place = int(sys.argv[1]), [], {}
    units = {name: unit_of(name) for name in sys.argv[2:]}
    for name, unit in sorted(units.items(), key=lambda item: -item[1]["bytes"]):  # Large ones first: small ones fill what they leave.
        for number, group in enumerate(groups):  # noqa: B007 - used behind the loop
            if group["bytes"] + unit["bytes"] <= limit and not meet(group, unit):
                break
        else:
            number, group = len(groups), {"bytes": 0, "private": {}, "seen": frozenset()}
            groups.append(group)
        group["bytes"] += unit["bytes"]
        group["private"] |= unit["private"]
        group["seen"] |= unit["seen"]
        place[name] = number
    for name in units:
        print(f"{place[name]} {name}")


if __name__ == "__main__":
    main()
