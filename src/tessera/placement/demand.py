"""A demand for slices, and the type of the function that says if a node takes it."""

from collections.abc import Callable

import msgspec

from tessera.placement.reasons import NodeRefusal


class Demand(msgspec.Struct, frozen=True):
    """Slices that a pod, usually one, waits for.

    Attributes:
        key: names the demand; unique in a batch.
        profiles: one entry per slice, as after ``nvidia.com/mig-`` (``1g.5gb.me``) or as NVIDIA writes it.
        priority: higher goes first.
        arrival: among equals, lower goes first.
        nodes: the only nodes that may take it, or are worth asking; None for all. Other nodes refuse it when asked.
        again: True if it was refused before and ``nodes`` changed since; the planner then need not explain a new
            refusal.
    """

    key: str
    profiles: tuple[str, ...]
    priority: int = 0
    arrival: float = 0.0
    nodes: frozenset[str] | None = None
    again: bool = False


NodeAllows = Callable[[Demand, str], NodeRefusal | None]
"""Tells if a node takes a demand, slices left aside: ``None``, or why not."""
