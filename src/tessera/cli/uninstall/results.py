"""Results of a removal: things that are removed, and things that stay."""

from typing import Literal

import msgspec


class Done(msgspec.Struct, frozen=True):
    """One thing that was done, or that a dry run would do.

    Attributes:
        name: the object as kubectl prints it, with its namespace: ``daemonset.apps/tessera-agent in tessera-system``.
        result: what happened to it.
        notes: for people: what stays by design, with the command that removes it.
    """

    name: str
    result: Literal[
        "deleted",
        "asked",
        "left by its agent",
        "waits",
        "cleaned",
        "ungated",
        "told",
        "driver removed",
        "given back",
        "kept",
    ]
    notes: tuple[str, ...] = ()


class Left(msgspec.Struct, frozen=True):
    """Something that stays though it should go.

    Attributes:
        name: the object, as in :class:`Done`.
        reason: why it stays, and what to do.
    """

    name: str
    reason: str


#: One result of a step.
Result = Done | Left


class Unfinished(Exception):  # noqa: N818 - no error of the program
    """The removal cannot go on now; the same command goes on later.

    Attributes:
        left: what is in the way.
    """

    def __init__(self, *left: Left) -> None:
        super().__init__("; ".join(f"{each.name}: {each.reason}" for each in left))
        self.left = left
