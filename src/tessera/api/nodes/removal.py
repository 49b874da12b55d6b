"""Two annotations of a Node, by which ``tessera uninstall`` and the node's agent agree that Tessera leaves the node.

``tessera.dev/removal``, by the command: the request. The agent takes devices back from kubelet, frees its cards,
removes its files, and does not begin again while the annotation is there.
``tessera.dev/removed``, by the agent: the answer. The command removes both at the end. See docs/remove.md.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated

import msgspec

from tessera.text import one_line

#: Most notes of a node's annotation tessera.dev/removed. A node of 16 cards in slices has fewer that stay; the rest is
#: counted.
REMOVAL_NOTES = 64
#: Most characters: one of these notes. It names a card, a slice, a pod and a command.
REMOVAL_NOTE = 400

REMOVAL_ANNOTATION = "tessera.dev/removal"
REMOVED_ANNOTATION = "tessera.dev/removed"


class RemovalRequest(Enum):
    """The treatment of GPU instances that Tessera made and no pod uses."""

    DESTROY = "destroy-slices"
    KEEP = "keep-slices"


def read_request(annotations: Mapping[str, str]) -> RemovalRequest | None:
    """The request on a Node; ``None`` without one. A value that nobody knows destroys nothing."""
    text = annotations.get(REMOVAL_ANNOTATION)
    if text is None:
        return None
    return RemovalRequest.DESTROY if text == RemovalRequest.DESTROY.value else RemovalRequest.KEEP


class RemovalState(Enum):
    """The progress of an agent."""

    WAITING = "waiting"  # pods use something that would end with the agent
    DONE = "done"


class RemovalAnswer(msgspec.Struct, frozen=True):
    """The answer of an agent.

    Attributes:
        state: how far it is.
        notes: for people: what it waits for, or what stays on the node and why.
    """

    state: RemovalState
    notes: Annotated[tuple[str, ...], msgspec.Meta(max_length=int(REMOVAL_NOTES))] = ()


_DECODER = msgspec.json.Decoder(RemovalAnswer)


def make_answer(state: RemovalState, notes: Sequence[str] = ()) -> RemovalAnswer:
    """An answer within its limits; notes beyond them are counted."""
    kept = [one_line(each, int(REMOVAL_NOTE)) for each in notes[: int(REMOVAL_NOTES)]]
    if len(notes) > len(kept):
        kept[-1] = f"and {len(notes) - len(kept) + 1} more"
    return RemovalAnswer(state, tuple(kept))


def encode_answer(answer: RemovalAnswer) -> str:
    """The value of ``tessera.dev/removed``."""
    return msgspec.json.encode(answer).decode()


def read_answer(annotations: Mapping[str, str]) -> RemovalAnswer | None:
    """The answer on a Node; ``None`` if there is none, or none that can be read."""
    text = annotations.get(REMOVED_ANNOTATION, "")
    if not text or len(text) > int(REMOVAL_NOTES) * (6 * int(REMOVAL_NOTE) + 8):
        return None
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
