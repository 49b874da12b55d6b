"""Chooses names of which not all can be had at a time: those of present readers, and others in turns.

A part of the room is kept for turns. Otherwise readers of many namespaces could take all of it, and others would never
learn what they may see.
"""

from bisect import bisect
from collections.abc import Collection, Sequence

#: One place in so many is kept for names that take turns.
KEPT = 4


class Turns:
    """Remembers whose turn was last."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, names: Collection[str], own: Sequence[str], most: int, kept: int) -> list[str]:
        """Returns the names whose turn it is now.

        Args:
            names: those that want a place.
            own: those of present readers, each once, which come first and in this order.
            most: the number of places.
            kept: the places that others have in any case, if there are too few.
        """
        mine = [name for name in own if name in names]
        first = mine[:most] if len(names) <= most else mine[: max(0, most - kept)]
        rest = sorted(set(names) - set(first))
        begin = bisect(rest, self._last)
        turns = [*rest[begin:], *rest[:begin]][: most - len(first)]
        self._last = turns[-1] if turns else self._last
        return [*first, *turns]
