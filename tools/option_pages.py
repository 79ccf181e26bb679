#!/usr/bin/env python3
"""Writes docs/options/ from what the program registers: option_pages.py BINARY; with --check it only says which page is stale.

Every option stands in these pages once. What several commands share has a section of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs/options"
# Commands by page. One that is on no page is an error.
PAGES = {
    "run": ("Options of run", ["run"]),
    "serve": ("Options of serve and batch", ["serve", "batch"]),
    "measure": ("Options of commands that measure and check", ["bench", "eval", "logits", "diagnose", "inspect", "experts"]),
    "files": ("Options of the other commands", ["synth", "convert", "pull", "list", "show", "rm", "ps", "launch", "doctor", "encode", "parse",
                                                  "tokenize", "completion", "man"]),
}
# Sections of the help text that stand once, by page.
SHARED = {"Options of every command": "every-command", "Several ranks": "every-command", "Conversation": "run", "Sampling": "run"}
# Bounds of a type, which tell a reader nothing.
BOUNDS = re.compile(r", at most (?:1073741824|1000000000|1048576)\b|; (?:0 or more|more than 0)(?=[,)])| \((?:0 or more|more than 0)(?:, at most \d{7,})?\)")
DEFAULT = re.compile(r" \(default: ([^();]*)(?:; ([^()]*))?\)")
Row = tuple[str, str]


def help_text(binary: str, command: str | None = None) -> str:
    """The text of --help-all, the same on every machine."""
    words = [binary, *([command] if command else []), "--help-all"]
    return subprocess.run(words, env={"HOME": "~", "COLUMNS": "100", "PATH": os.defpath}, capture_output=True, text=True, check=True).stdout


def sections(text: str) -> dict[str, list[Row]]:
    """Options and arguments of a help text by section, each with its explanation in one line."""
    found: dict[str, list[list[str]]] = {}
    rows = None
    for line in text.splitlines():
        title = re.fullmatch(r"(\S.*):", line)
        if title:
            rows = found.setdefault(title[1], [])
        elif not line.startswith(" "):
            rows = rows if not line else None
        elif rows is not None and line.startswith("  ") and line[2] != " ":
            name, _, words = line[2:].partition("  ")
            rows.append([name, words.strip()])
            argument = re.fullmatch(r"([A-Z]+)([a-z].*)", name)
            if argument:  # An argument's choices stand behind its name without a blank.
                rows[-1] = [argument[1], f"{argument[2]}: {words.strip()}"]
        elif rows:
            rows[-1][1] = f"{rows[-1][1]} {line.strip()}".strip()
    return {title: [(name, words) for name, words in rows] for title, rows in found.items()}


def table(rows: list[Row]) -> str:
    """Rows as Markdown."""
    lines = []
    for name, words in rows:
        plain = BOUNDS.sub("", words)
        default = DEFAULT.search(plain)
        cells = ["`" + name + "`", default[1] if default else "", DEFAULT.sub(lambda found: f" ({found[2]})" if found[2] else "", plain, count=1)]
        lines.append("|" + "|".join(cell.replace("|", r"\|") for cell in cells) + "|")
    return "\n".join(["|Option|Default|Meaning|", "|---|---|---|", *lines]) + "\n"


def pages(binary: str) -> dict[str, str]:
    """The text of each page by its name."""
    overview = help_text(binary)
    commands = {name: words for name, words in sections(overview)["Subcommands"]}
    on_a_page = [command for _, listed in PAGES.values() for command in listed]
    if set(on_a_page) != set(commands):
        sys.exit(f"option_pages.py: commands on no page or gone: {sorted(set(on_a_page) ^ set(commands))}")
    shared: dict[str, dict[Row, list[str]]] = {title: {} for title in SHARED}
    own: dict[str, dict[str, list[Row]]] = {}
    for command in on_a_page:
        own[command] = {}
        for title, rows in sections(help_text(binary, command)).items():
            kept = [row for row in rows if not row[0].startswith(("-h,", "--help-all"))]
            if title in SHARED:
                for row in kept:
                    shared[title].setdefault(row, []).append(command)
            elif title not in ("Examples", "Usage") and kept:
                own[command][title] = kept
    head = "<!-- Made by tools/option_pages.py: do not edit. -->\n"
    texts = {"every-command": f"# Options of every command\n\n{head}"}
    texts |= {page: f"# {title}\n\n{head}" for page, (title, _) in PAGES.items()}
    for page, (_, listed) in PAGES.items():
        for command in listed:
            texts[page] += f"\n## {command}\n\n{commands[command]}.\n"
            for title, rows in own[command].items():
                texts[page] += ("" if title in ("Options", "Arguments") else f"\n{title}:\n") + "\n" + table(rows)
    for title, by_row in shared.items():
        users = [command for command in on_a_page if any(command in each for each in by_row.values())]
        which = "Every command that runs a model" if title == "Options of every command" else "Commands: " + ", ".join(f"`{name}`" for name in users)
        texts[SHARED[title]] += f"\n## {title}\n\n{which}.\n\n{table(list(by_row))}"
    return texts


def main() -> None:
    """Writes or compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", help="dsv4 as it was built")
    parser.add_argument("--check", action="store_true", help="compare only: exit code 1 where a page is stale")
    arguments = parser.parse_args()
    stale = []
    for name, text in pages(arguments.binary).items():
        path = FOLDER / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if not arguments.check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
    if arguments.check and stale:
        sys.exit(f"docs/options: {', '.join(stale)} not what {arguments.binary} registers; run tools/option_pages.py {arguments.binary}")


if __name__ == "__main__":
    main()
