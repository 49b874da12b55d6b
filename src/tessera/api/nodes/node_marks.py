"""Marks on a Node: the conditions of its agent, the cards that a person took out of service, and Tessera's removal.

A silent agent cannot take back what it said, so the controller sets its conditions to ``Unknown``, as Kubernetes does
with kubelet's: there, reason ``NodeStatusUnknown`` and message "Kubelet stopped posting node status.". The controller
writes as the agent's own field manager. So the agent's next write takes every field over, and a condition that a later
agent no longer has disappears with it. Kubelet reports for every pod if it is ready, at once when a container ends and
after each failed probe. So an agent's own pod is its heartbeat, and costs the API server no extra writes.

``tessera.dev/cordon.GPU-…`` with the reason as its value takes a card out of service. The key has the card's UUID,
since an index may change. Each card has an annotation of its own, so that two people who cordon two cards at once do
not overwrite each other, and so that ``kubectl annotate`` is enough. The node's agent reads it in the watch of its own
Node, and writes none.

By two annotations ``tessera uninstall`` and the node's agent agree that Tessera leaves the node (docs/remove.md).
``tessera.dev/removal``, by the command: the request. The agent takes devices back from kubelet, frees its cards,
removes its files, and does not begin again while the annotation is there. ``tessera.dev/removed``, by the agent: the
answer. The command removes both at the end.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Annotated, Any

import msgspec

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.api.nodes.driver_status import ADVERTISED_CONDITION
from tessera.kube.resources import Condition, Pod
from tessera.limits import CONDITION_MESSAGE, CORDON_REASON, NODE_CARDS
from tessera.text import one_line

#: DaemonSet of the agents. This owner makes a pod an agent: every user may set the label, but only a user with rights
#: in Tessera's namespace can create a pod there.
AGENT_DAEMON_SET = ("apps/v1", "DaemonSet", "tessera-agent")


#: Label of the agents' pods, as deploy/ has it; it finds them, and proves nothing.
AGENT_LABEL = ("app.kubernetes.io/name", "tessera-agent")


def is_agent(pod: Pod) -> bool:
    """True if the agents' DaemonSet made the pod. The label alone proves nothing: any user can set it on a pod."""
    return pod.metadata.namespace == SYSTEM_NAMESPACE and any(
        owner.controller and (owner.api_version, owner.kind, owner.name) == AGENT_DAEMON_SET
        for owner in pod.metadata.owner_references
    )


SHARING, LAYOUT, HEALTH, MPS = "GpuSharingApplied", "GpuMigLayoutApplied", "GpuHealthy", "GpuMpsReady"
#: Every type that an agent may have written while there is a driver.
CARD_CONDITIONS = frozenset({SHARING, LAYOUT, HEALTH, MPS})
#: Field manager of these, and of ``GpuNodeReady``, which an agent writes without a driver too.
CARDS_MANAGER, ADVERTISED_MANAGER = "tessera-agent", "tessera-agent-driver"
#: The types that each of them writes, and all of these.
CONDITIONS_BY_MANAGER = {CARDS_MANAGER: CARD_CONDITIONS, ADVERTISED_MANAGER: frozenset({ADVERTISED_CONDITION})}
AGENT_CONDITIONS = CARD_CONDITIONS | {ADVERTISED_CONDITION}
#: The controller's condition of a node that came up: True once it offers all its GPUs, False if it does not at its
#: deadline. Nobody knows if it still does while its agent is silent. It has a field manager of its own, since other
#: parts of the controller apply conditions to the same nodes.
PROVISIONED, PROVISIONED_MANAGER = "GpuProvisioned", "tessera-provisioning"
#: What becomes ``Unknown`` when an agent is silent, by field manager.
MARKED_BY_MANAGER = CONDITIONS_BY_MANAGER | {PROVISIONED_MANAGER: frozenset({PROVISIONED})}
#: Reason of a condition whose writer is silent; the status is ``Unknown``.
AGENT_STATUS_UNKNOWN = "AgentStatusUnknown"


def is_marked_silent(condition: Condition) -> bool:
    """True if the controller marked a condition since the agent that wrote it is silent."""
    return condition.status == "Unknown" and condition.reason == AGENT_STATUS_UNKNOWN


def mark_silent(shown: Condition, why: str, node: str, now: str) -> dict[str, Any]:
    """The condition of a silent agent, in the form of an apply.

    The time of the last heartbeat stays: it is when the agent last spoke. What was wrong by its last word stays too.

    Args:
        shown: the condition as the Node shows it.
        why: the reason of the silence.
        node: the Node's name.
        now: the present time, RFC 3339.
    """
    before = f". It last said: {shown.message or shown.reason}" if shown.status == "False" else ""
    text = f"Tessera's agent stopped posting the state of the cards: {why}; see tessera why node/{node}{before}"
    found = {
        "type": shown.type,
        "status": "Unknown",
        "reason": AGENT_STATUS_UNKNOWN,
        "message": shown.message if is_marked_silent(shown) else one_line(text, CONDITION_MESSAGE),
        "lastTransitionTime": (shown.last_transition_time if shown.status == "Unknown" else None) or now,
    }
    heartbeat = shown.last_heartbeat_time
    return found if heartbeat is None else {**found, "lastHeartbeatTime": heartbeat}


#: Beginning of the key; the card's UUID follows.
CORDON_PREFIX = "tessera.dev/cordon."
#: ``GPU-`` with NVML's UUID. The name of an annotation has 63 characters at most, so these have 56.
_UUID = re.compile(r"GPU-(?:[0-9a-zA-Z-]{0,51}[0-9a-zA-Z])")


class Cordon(msgspec.Struct, frozen=True, order=True):
    """A card that a person has taken out of service: its UUID, and the reason in one line."""

    gpu: str
    reason: str


def cordon_key(gpu: str) -> str:
    """The key of the annotation that cordons a card."""
    return f"{CORDON_PREFIX}{gpu}"


def read_cordons(annotations: Mapping[str, str]) -> tuple[Cordon, ...]:
    """The cordons of a Node, sorted; the first ones, if there are more than a node may have cards."""
    found = sorted(key for key in annotations if key.startswith(CORDON_PREFIX))
    cards = ((key, key.removeprefix(CORDON_PREFIX)) for key in found)
    return tuple(
        Cordon(gpu, one_line(annotations[key].strip(), CORDON_REASON))
        for key, gpu in islice(((key, gpu) for key, gpu in cards if _UUID.fullmatch(gpu)), int(NODE_CARDS))
    )


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
