"""Which sources of a module may be compiled as one unit: those that share no name that is private to a file.

    joined_units.py BYTES FILE...

Prints a line for each file: its group and the file. A group has about BYTES of source. Names are those at the left margin inside an unnamed
namespace or behind `static`, and macros: two files that have one in common are never in one group.
"""
import pathlib
import re
import sys

DECLARED = re.compile(r"^(?:template\b.*|(?:struct|class|enum class|enum|union) (?:\[\[.*?\]\] )?(\w+)|using (\w+) =|.*?[\s*&](\w+)(?:\(|\[| = |\{|;| \{).*)")


def private_names(text):
    """The names that a file keeps to itself."""
    names = set(re.findall(r"^#define (\w+)", text, re.M))
    inside = False
    for line in text.splitlines():
        if line.startswith("namespace {"):
            inside = True
        elif line.startswith("}  // namespace"):
            inside = False
        elif line[:1] not in ("", " ", "}", "#", "/", ")") and (inside or line.startswith("static ")):
            names.update(re.findall(r"\b([A-Za-z_]\w*)(?=\(|\[| = |\{|;| \{|$| :| final)", line.split("//")[0]))
    return names - {"const", "noexcept", "override", "constexpr"}


def main():
    limit = int(sys.argv[1])
    groups = []
    for name in sys.argv[2:]:
        text = pathlib.Path(name).read_text(encoding="utf-8")
        names = private_names(text)
        for group in groups:
            if group["bytes"] + len(text) <= limit and not names & group["names"]:
                break
        else:
            group = {"bytes": 0, "names": set(), "number": len(groups)}
            groups.append(group)
        group["bytes"] += len(text)
        group["names"] |= names
        print(f"{group['number']} {name}")


if __name__ == "__main__":
    main()
