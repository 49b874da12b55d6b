"""Conditions of the Node: they report if the desired configuration of its cards is in force, and if not, why. Pure.

``True`` means "in force as desired"; ``False`` has the reason as a word for machines and a text for people; ``Unknown``
means "in progress". The time of the last transition changes with the status only, as Kubernetes' API conventions
require. The time of the last heartbeat is that of the last write, since the agent writes only changes.
"""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Literal

import msgspec

from tessera.api.nodes.node_marks import CARD_CONDITIONS
from tessera.kube.resources import Condition
from tessera.limits import CONDITION_MESSAGE
from tessera.text import one_line

ConditionStatus = Literal["True", "False", "Unknown"]


class NodeCondition(msgspec.Struct, frozen=True):
    """One condition as the agent writes it on the Node."""

    type: str
    status: ConditionStatus
    reason: str
    message: str


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
