"""Conditions of the Node: they report if the desired configuration of its cards is in force, and if not, why. Pure.

``True`` means "in force as desired"; ``False`` has the reason as a word for machines and a text for people; ``Unknown``
means "in progress". The time of the last transition changes with the status only, as Kubernetes' API conventions
require. The time of the last heartbeat is that of the last write, since the agent writes only changes.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Literal, Protocol

import msgspec

from tessera.agent.base.desired_config import DesiredSharing
from tessera.api.nodes.conditions import CARD_CONDITIONS, LAYOUT, MPS, SHARING
from tessera.api.sharing.devices import Advertisement
from tessera.kube.resources import Condition
from tessera.limits.messages import CONDITION_MESSAGE
from tessera.text import one_line

ConditionStatus = Literal["True", "False", "Unknown"]


class NodeCondition(msgspec.Struct, frozen=True):
    """One condition as the agent writes it on the Node."""

    type: str
    status: ConditionStatus
    reason: str
    message: str


class LayoutOutcome(Protocol):
    """Result of applying a MIG layout."""

    @property
    def state(self) -> str:
        """``pending``, ``rebooting``, ``success`` or ``failed``; empty if no layout is desired."""
        ...

    @property
    def reason(self) -> str:
        """A word for machines; may be empty."""
        ...

    @property
    def message(self) -> str:
        """A text for people."""
        ...


def sharing_condition(
    desired: DesiredSharing,
    in_force: str,
    *,
    offer: Advertisement | None = None,
    problem: str | None = None,
    problem_reason: str | None = None,
) -> NodeCondition:
    """Returns the condition of the desired sharing profile: true if it is in force.

    Args:
        desired: the desired profile.
        in_force: name of the profile behind the present offer; empty for none.
        offer: the present offer: its counts show that new content of a profile is in force, its notices name fields
            without effect.
        problem: reason that the desired profile cannot be offered on these cards; ``None`` if it can.
        problem_reason: the same as a word; ``ProfileRefused`` unless given.
    """
    now = f'profile "{in_force}" is in force' if in_force else "no profile is in force, nothing is shared"
    if problem is not None:
        return NodeCondition(SHARING, "False", problem_reason or "ProfileRefused", f"{problem}; {now}")
    if desired.problem is not None:
        return NodeCondition(SHARING, "False", desired.problem_reason or "ProfileRefused", f"{desired.problem}; {now}")
    if desired.name != in_force:
        coming = f'profile "{desired.name}" ({desired.reason})' if desired.name else f"no profile ({desired.reason})"
        return NodeCondition(SHARING, "Unknown", "ProfilePending", f"{coming} is next; {now}")
    texts = [f"{now}: {desired.reason}", *_effects(offer)]
    return NodeCondition(SHARING, "True", "ProfileInForce" if in_force else "NoProfile", "; ".join(texts))


def _effects(offer: Advertisement | None) -> Iterator[str]:
    if offer is not None and offer.counts:
        yield f"offered: {', '.join(f'{count} {resource}' for resource, count in sorted(offer.counts.items()))}"
    if offer is not None:
        yield from map(str, offer.notices)


def layout_condition(outcome: LayoutOutcome) -> NodeCondition | None:
    """Returns the condition of the desired MIG layout: true if it is in force; ``None`` if none is desired."""
    if not outcome.state:
        return None
    truths: Mapping[str, ConditionStatus] = {"success": "True", "failed": "False"}
    words = {"success": "LayoutApplied", "failed": "LayoutFailed", "rebooting": "NodeRebooting"}
    reason = outcome.reason or words.get(outcome.state, "LayoutPending")
    return NodeCondition(LAYOUT, truths.get(outcome.state, "Unknown"), reason, outcome.message)


def mps_condition(waiting: Mapping[str, str]) -> NodeCondition | None:
    """Returns the condition of the MPS daemons: true if all serve; ``None`` if MPS shares no resource.

    Args:
        waiting: by resource that MPS shares, the reason that its daemons do not serve; empty text if they do.
    """
    if not waiting:
        return None
    unready = [f"{resource}: {reason}" for resource, reason in sorted(waiting.items()) if reason]
    if unready:
        return NodeCondition(MPS, "False", "DaemonNotReady", "; ".join(unready))
    return NodeCondition(MPS, "True", "DaemonsReady", f"MPS serves {', '.join(sorted(waiting))}")


def bound_messages(conditions: Iterable[NodeCondition]) -> dict[str, NodeCondition]:
    """The conditions by type, each message one printable line of bounded length."""
    return {
        each.type: msgspec.structs.replace(each, message=one_line(each.message, CONDITION_MESSAGE))
        for each in conditions
    }


def read_conditions(shown: Iterable[Condition]) -> dict[str, NodeCondition]:
    """The agent's own conditions that a Node shows."""
    truths: Mapping[str, ConditionStatus] = {"True": "True", "False": "False"}
    return {
        each.type: NodeCondition(each.type, truths.get(each.status, "Unknown"), each.reason, each.message)
        for each in shown
        if each.type in CARD_CONDITIONS
    }


def conditions_manifest(
    conditions: Iterable[NodeCondition], since: MutableMapping[str, tuple[str, str]], now: str
) -> list[dict[str, Any]]:
    """The conditions by type, in the form of an apply.

    Args:
        conditions: all conditions to write on the Node.
        since: by type, the last status and the time since which it holds; updated to these conditions.
        now: the present time, RFC 3339.
    """
    found: list[dict[str, Any]] = []
    before = dict(since)
    since.clear()
    for each in sorted(conditions, key=lambda condition: condition.type):
        status, time = before.get(each.type, ("", now))
        time = time if status == each.status else now
        since[each.type] = (each.status, time)
        found.append({**msgspec.to_builtins(each), "lastHeartbeatTime": now, "lastTransitionTime": time})
    return found
