"""Node selectors, node affinity and taints: ``k8s.io/component-helpers/scheduling/corev1``.

Works on decoded JSON: a pod's ``spec`` and a node's labels, name and taints. The DaemonSet controller and the simulated
kubelet's admission use these functions too, as in Kubernetes. :class:`NodeRejection` is the answer of every filter.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.scheduler.state.pod_requests import term_matches


class NodeRejection(msgspec.Struct, frozen=True):
    """One reason.

    Attributes:
        reason: kube-scheduler's text.
        final: the end of other pods cannot change it (``UnschedulableAndUnresolvable``), so preemption does not try.
    """

    reason: str
    final: bool = False


Json = Mapping[str, Any]


def selector_matches(spec: Json, labels: Mapping[str, str], name: str) -> bool:
    """True if ``spec.nodeSelector`` and the required node affinity both admit a node with these labels."""
    desired = spec.get("nodeSelector")
    if desired and any(labels.get(key) != value for key, value in desired.items()):
        return False
    terms = required_terms(spec)
    return terms is None or any(term_matches(term, labels, name) for term in terms)


def required_terms(spec: Json) -> Sequence[Json] | None:
    """The ORed terms of required node affinity; None without any. An empty list matches no node."""
    required = _node_affinity(spec).get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else required.get("nodeSelectorTerms") or ()


def preferred_weight(spec: Json, labels: Mapping[str, str], name: str) -> int:
    """The sum of the weights of the preferred terms that match the node."""
    preferred = _node_affinity(spec).get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return sum(
        int(entry.get("weight", 0)) for entry in preferred if term_matches(entry.get("preference") or {}, labels, name)
    )


def pinned_names(spec: Json) -> frozenset[str] | None:
    """Returns the only nodes that required affinity on ``metadata.name`` admits; None if a term admits others.

    DaemonSet pods have such an affinity; a decision then need not check the other nodes.
    """
    terms = required_terms(spec)
    if not terms:
        return None
    names: set[str] = set()
    for term in terms:
        fields = [f for f in term.get("matchFields") or () if f.get("operator") == "In"]
        if not fields:
            return None
        names.update(fields[0].get("values") or ())
    return frozenset(names)


def _node_affinity(spec: Json) -> Json:
    affinity = spec.get("affinity") or {}
    node: Json = affinity.get("nodeAffinity") or {}
    return node


#: Effects that keep a new pod away. PreferNoSchedule only lowers a node's score.
SCHEDULING_EFFECTS = ("NoSchedule", "NoExecute")


def tolerates(toleration: Json, taint: Json) -> bool:
    """True if one toleration covers one taint. An empty key with Exists covers all, an empty effect covers each."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")


def find_untolerated(
    taints: Sequence[Json], tolerations: Sequence[Json], effects: Collection[str] = SCHEDULING_EFFECTS
) -> Json | None:
    """The first taint with one of ``effects`` that no toleration covers, or None."""
    for taint in taints:
        if taint.get("effect") in effects and not any(tolerates(each, taint) for each in tolerations):
            return taint
    return None
