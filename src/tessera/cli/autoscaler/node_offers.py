"""Labels and offers of nodes, by which the cluster autoscaler judges whether one with cards has started. Pure.

It looks for its provider's accelerator label, and then for ``nvidia.com/gpu`` alone: a node that offers slices or
renamed shares instead is unready to it for ever (kubernetes/autoscaler #8095, #7050). Where such a node is of no group
that it manages, it cannot say either how many cards are to come, and no group of the cluster grows (#10301).
"""

from collections.abc import Iterable, Iterator, Mapping

from tessera.api.names import MIG_CONFIG_LABEL, is_on_demand
from tessera.api.nodes.gpu_labels import ACCELERATOR_LABELS, CAPI_ACCELERATOR, PROVIDER_ACCELERATORS
from tessera.cli.autoscaler.machine_sets import SetFacts
from tessera.kube.quantity import whole
from tessera.kube.resources import Node
from tessera.provisioning.tracking.node_groups import group_of

#: Annotations of nodes that Cluster API or OpenShift made: there the autoscaler is Cluster API's.
_MACHINE_ANNOTATIONS = ("cluster.x-k8s.io/machine", "machine.openshift.io/machine")
_DOMAIN, _WHOLE = "nvidia.com/", "nvidia.com/gpu"


def accelerator(labels: Mapping[str, str], names: Iterable[str]) -> tuple[str, str] | None:
    """Name and value of the first of these labels that is there."""
    return next(((name, labels[name]) for name in names if name in labels), None)


def labels_of_groups(nodes: Iterable[Node]) -> dict[str, tuple[str, str] | None]:
    """By node group: name and value of the accelerator label that all of its nodes carry, or None."""
    found: dict[str, tuple[str, str] | None] = {}
    for node in nodes:
        group = _group(node)
        if group:
            label = _accelerator(node)
            found[group] = label if found.get(group, label) is not None else None
    return found


def sliced_groups(nodes: Iterable[Node]) -> frozenset[str]:
    """Node groups with a node that offers slices or renamed shares, or is about to, and no ``nvidia.com/gpu``."""
    return frozenset(_group(node) for node in nodes if _group(node) and _sliced(node))


def unmanaged(nodes: Iterable[Node], sets: Mapping[str, SetFacts]) -> tuple[tuple[str, str], ...]:
    """Nodes of no autoscaled group that carry an accelerator label and offer no ``nvidia.com/gpu``; with the label.

    Whether a cloud's own group is autoscaled is nowhere in the cluster; of those nothing is said.
    """
    return tuple(sorted(_unmanaged(nodes, sets)))


def _unmanaged(nodes: Iterable[Node], sets: Mapping[str, SetFacts]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        group, label = _group(node), _accelerator(node)
        managed = sets[group].autoscaled if group in sets else bool(group)
        if label is not None and not managed and not _amount(node, _WHOLE):
            yield node.metadata.name, label[0]


def _group(node: Node) -> str:
    return group_of(node.metadata.labels, node.metadata.annotations)


def _accelerator(node: Node) -> tuple[str, str] | None:
    """The label that the autoscaler looks for on a node: another provider's does nothing."""
    if any(name in node.metadata.annotations for name in _MACHINE_ANNOTATIONS):
        return accelerator(node.metadata.labels, (CAPI_ACCELERATOR,))
    scheme = (node.spec.provider_id or "").partition(":")[0]
    return accelerator(node.metadata.labels, PROVIDER_ACCELERATORS.get(scheme, ACCELERATOR_LABELS))


def _sliced(node: Node) -> bool:
    if _amount(node, _WHOLE):
        return False
    others = [name for name in node.status.allocatable if name.startswith(_DOMAIN)]
    return is_on_demand(node.metadata.labels.get(MIG_CONFIG_LABEL, "")) or any(_amount(node, name) for name in others)


def _amount(node: Node, resource: str) -> int:
    try:
        return whole(node.status.allocatable.get(resource, "0"))
    except ValueError:
        return 0
