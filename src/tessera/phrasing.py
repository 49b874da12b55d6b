"""Words that every message and table writes the same way: ages, counted nouns, and lists that are cut."""

from collections.abc import Sequence


def age(seconds: float) -> str:
    """A span of time as kubectl prints ages, in one unit: ``42s``, ``7m``, ``3h``, ``12d``."""
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def count_noun(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``; for nouns whose plural ends in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def list_alternatives(words: Sequence[str]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def list_names(names: Sequence[str], most: int = 5) -> str:
    """Names with commas; after ``most`` of them only how many more there are: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
