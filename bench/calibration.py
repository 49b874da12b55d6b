"""How fast this machine runs plain Python that does what every placement must: the unit in which decisions are told.

Decisions a second differ by a factor of two and more between machines, and with what else they do. A turn of this loop
differs with them: it draws a card, finds it by name, makes the value that callers get, and moves the card between
queues of alike cards. So a decision in turns compares between machines, and between fleets: with many cards both
read memory that no cache holds.
"""

import random
import time
from collections import deque
from typing import NamedTuple

#: Queues of alike cards.
_QUEUES = 64
_TURNS = 20_000


class _Place(NamedTuple):
    node: str
    card: str
    start: int


class _Card:
    __slots__ = ("node", "queue")

    def __init__(self, node: str, queue: int) -> None:
        self.node, self.queue = node, queue


def turn_us(cards: int, turns: int = _TURNS) -> float:
    """Returns the microseconds of CPU time of a turn, with so many cards.

    Args:
        cards: number of cards.
        turns: so many are timed at once.
    """
    rng = random.Random(cards)
    names = [f"GPU-{number}" for number in range(cards)]
    found = {name: _Card(f"node-{number // 8}", number % _QUEUES) for number, name in enumerate(names)}
    queues: list[deque[str]] = [deque() for _ in range(_QUEUES)]
    for name, card in found.items():
        queues[card.queue].append(name)
    began = time.thread_time()
    for number in range(turns):
        card = found[names[int(rng.random() * cards)]]
        queue = queues[number % _QUEUES]
        name = queue.popleft() if queue else names[0]
        moved = found[name]
        moved.queue = (moved.queue + 1 + card.queue) % _QUEUES
        queues[moved.queue].append(name)
        _Place(moved.node, name, moved.queue)
    return 1e6 * (time.thread_time() - began) / turns
