"""Taints and tolerations, as ``k8s.io/component-helpers/scheduling/corev1`` matches them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]

#: Effects that keep a new pod away. PreferNoSchedule only lowers a node's score.
SCHEDULING_EFFECTS = ("NoSchedule", "NoExecute")


def tolerates(toleration: Json, taint: Json) -> bool:
    """Whether one toleration covers one taint. An empty key with Exists covers all, an empty effect covers each."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")


def untolerated(
    taints: Sequence[Json], tolerations: Sequence[Json], effects: Collection[str] = SCHEDULING_EFFECTS
) -> Json | None:
    """The first taint with one of ``effects`` that no toleration covers, or None."""
    for taint in taints:
        if taint.get("effect") in effects and not any(tolerates(each, taint) for each in tolerations):
            return taint
    return None
