"""A demand for slices, and the question whether a node takes it."""

from collections.abc import Callable

import msgspec

from tessera.placement.reasons import NodeRefusal


class Demand(msgspec.Struct, frozen=True):
    """Slices that are waited for, usually by one pod.

    Attributes:
        key: names the demand; unique in a batch.
        profiles: one entry per slice, as after ``nvidia.com/mig-`` (``1g.5gb.me``) or as NVIDIA writes it.
        priority: higher goes first.
        arrival: among equals, lower goes first.
        nodes: the only nodes that may take it, or that are worth asking; None for all. The others refuse it when asked.
        again: it was refused before and ``nodes`` are those that changed since; why it is refused again is not asked.
    """

    key: str
    profiles: tuple[str, ...]
    priority: int = 0
    arrival: float = 0.0
    nodes: frozenset[str] | None = None
    again: bool = False


NodeAllows = Callable[[Demand, str], NodeRefusal | None]
"""Tells if a node takes a demand, slices left aside: ``None``, or why not."""
