"""Decides which ClusterPolicy counts, and which NVIDIADriver each node has.

- The oldest ClusterPolicy counts; of two from the same second, the first by name. The others are ignored.
- An NVIDIADriver is for the nodes that its selector and affinity select; without either, for all nodes.
- The default NVIDIADriver is for the nodes that no other selects. Of several default ones the oldest counts.
- A node that several select stays with its present one (label :data:`OWNER_LABEL`), or has none: Tessera does not
  guess, and no other node is delayed. NVIDIA's operator stops all of them instead.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.gpu_operator.driver_policy import DriverPolicy
from tessera.gpu_operator.policy_objects import DRIVER_KIND, OWNER_LABEL, POLICY_KIND
from tessera.kube.resources import NodeAffinity, NodeSelectorRequirement
from tessera.kube.resources.meta import Resource
from tessera.kube.resources.selectors import Requirement, parse_operator
from tessera.text import list_names

#: Untyped: every field counts, also those that Tessera does not know.
CLUSTER_POLICIES = Resource("nvidia.com", "v1", "clusterpolicies", POLICY_KIND, False, dict[str, Any])
NVIDIA_DRIVERS = Resource("nvidia.com", "v1alpha1", "nvidiadrivers", DRIVER_KIND, False, dict[str, Any])

#: Most names in one message; further ones are only counted.
_NAMED = 10


class DriverConflict(msgspec.Struct, frozen=True, kw_only=True):
    """NVIDIADrivers that cannot all be applied.

    Attributes:
        drivers: their names.
        nodes: the nodes that all of them select; empty if the objects contradict each other without a node.
        text: the contradiction and the remedy.
    """

    drivers: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    text: str


class DriverAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The NVIDIADriver of each node.

    Attributes:
        nodes: the NVIDIADriver by node name; a missing node is selected by none, or by several.
        conflicts: why nodes are missing.
    """

    nodes: Mapping[str, DriverPolicy] = {}
    conflicts: tuple[DriverConflict, ...] = ()

    def of(self, driver: str) -> tuple[str, ...]:
        """Returns the nodes of an NVIDIADriver, by name."""
        return tuple(sorted(node for node, policy in self.nodes.items() if policy.name == driver))

    def conflict_of(self, driver: str) -> DriverConflict | None:
        """Returns the first conflict that an NVIDIADriver is part of."""
        return next((each for each in self.conflicts if driver in each.drivers), None)


def find_governing_policy(
    policies: Sequence[Mapping[str, Any]],
) -> tuple[Mapping[str, Any] | None, Sequence[Mapping[str, Any]]]:
    """Returns the ClusterPolicy that counts, and the others; those that are being deleted count last."""
    order = sorted(policies, key=_creation_order)
    return (order[0], order[1:]) if order else (None, [])


def _creation_order(obj: Mapping[str, Any]) -> tuple[bool, str, str]:
    metadata = obj.get("metadata") or {}
    return bool(metadata.get("deletionTimestamp")), metadata.get("creationTimestamp") or "~", metadata.get("name", "")


def assign_drivers(drivers: Sequence[DriverPolicy], nodes: Mapping[str, Mapping[str, str]]) -> DriverAssignment:
    """Divides nodes among NVIDIADrivers.

    Args:
        drivers: the readable NVIDIADrivers, in any order.
        nodes: labels of the nodes with cards, by name.
    """
    ordered = sorted(drivers, key=lambda each: (each.created or "~", each.name))
    defaults = [each for each in ordered if each.default]
    selecting = [each for each in ordered if not each.default]
    found: dict[str, DriverPolicy] = {}
    contested: dict[tuple[str, ...], list[str]] = {}
    for node, labels in sorted(nodes.items()):
        meaning = [each for each in selecting if _selects(each, node, labels)]
        chosen = _choose_driver(meaning or defaults[:1], labels)
        if chosen is not None:
            found[node] = chosen
        if len(meaning) > 1:
            contested.setdefault(tuple(each.name for each in meaning), []).append(node)
    return DriverAssignment(nodes=found, conflicts=(*_defaults(defaults), *_overlaps(contested)))


def _selects(driver: DriverPolicy, node: str, labels: Mapping[str, str]) -> bool:
    selected = all(labels.get(key) == value for key, value in driver.node_selector.items())
    return selected and _matches_affinity(driver.node_affinity, node, labels)


def _matches_affinity(affinity: Mapping[str, Any], node: str, labels: Mapping[str, str]) -> bool:
    """True if required node affinity holds; preferred affinity excludes no node.

    A term that Kubernetes would refuse matches no node.
    """
    try:
        required = msgspec.convert(affinity, NodeAffinity).required
        if required is None:
            return True
        name = {"metadata.name": node}
        return any(
            (term.match_expressions or term.match_fields)
            and all(_matches_expression(each, labels) for each in term.match_expressions)
            and all(_matches_expression(each, name) for each in term.match_fields)
            for term in required.node_selector_terms
        )
    except (msgspec.ValidationError, ValueError):
        return False


def _matches_expression(test: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    return Requirement(test.key, parse_operator(test.operator), test.values).matches(labels)


def _choose_driver(meaning: Sequence[DriverPolicy], labels: Mapping[str, str]) -> DriverPolicy | None:
    if len(meaning) == 1:
        return meaning[0]
    return next((each for each in meaning if each.name == labels.get(OWNER_LABEL)), None)


def _defaults(defaults: Sequence[DriverPolicy]) -> Iterator[DriverConflict]:
    if len(defaults) > 1:
        names = tuple(each.name for each in defaults)
        are = f"{' and '.join(names)} are {_all_of(names)} default"
        text = f"{are}; {names[0]}, the oldest, counts: take default from the others"
        yield DriverConflict(drivers=names, text=text)


def _overlaps(contested: Mapping[tuple[str, ...], Sequence[str]]) -> Iterator[DriverConflict]:
    for names, nodes in contested.items():
        which = list_names(nodes, _NAMED)
        text = f"{' and '.join(names)} {_all_of(names)} select {which}; give each a nodeSelector of its own"
        yield DriverConflict(drivers=names, nodes=tuple(nodes), text=text)


def _all_of(names: Sequence[str]) -> str:
    return "both" if len(names) == 2 else "all"
