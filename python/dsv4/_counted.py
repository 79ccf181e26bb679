"""Counts in messages: "1 token", "3 tokens"."""


def counted(count: int, noun: str) -> str:
    """The count and its noun, in the singular where it is one."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
