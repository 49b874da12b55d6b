"""Reads Machines and NodeClaims of autoscalers: the nodes that they become, and the times of their requests."""

from collections.abc import Mapping

import msgspec

from tessera.kube.resources import Machine, Resource
from tessera.provisioning.tracking.timestamps import KARPENTER_LABEL, parse_time, true_since

#: Labels of machines that name their node group: Karpenter, Cluster API (two), OpenShift.
_GROUPS = (
    KARPENTER_LABEL,
    "topology.cluster.x-k8s.io/deployment-name",
    "cluster.x-k8s.io/set-name",
    "machine.openshift.io/cluster-api-machineset",
)
#: Conditions that show that a machine's virtual machine exists: Cluster API, OpenShift, Karpenter.
_VM_CONDITIONS = frozenset({"InfrastructureReady", "InstanceExists", "Launched"})


class MachineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The Machine or NodeClaim that a node was made from.

    Attributes:
        resource: plural and group, ``machines.cluster.x-k8s.io``.
        namespace: the object's namespace; empty for a NodeClaim.
        name: the object's name.
        uid: the object's UID.
        node: the node that it became; empty if none yet.
        provider_id: provider id of its virtual machine; empty if not known yet.
        requested: when it was created.
        vm_created: when its virtual machine existed.
        group: the node group.
        annotations: its annotations, which may forbid its replacement.
        deleting: it is being deleted.
    """

    resource: str
    namespace: str
    name: str
    uid: str
    node: str = ""
    provider_id: str = ""
    requested: float | None = None
    vm_created: float | None = None
    group: str = ""
    annotations: Mapping[str, str] = {}
    deleting: bool = False


def read_machine(machine: Machine, resource: Resource[Machine]) -> MachineRequest:
    """Reads a Machine or NodeClaim."""
    status, labels = machine.status, machine.metadata.labels
    newer = status.v1beta2.conditions if status.v1beta2 is not None else ()
    conditions = (*status.conditions, *newer)
    node = status.node_ref.name if status.node_ref is not None else status.node_name
    return MachineRequest(
        resource=resource.label,
        namespace=machine.metadata.namespace,
        name=machine.metadata.name,
        uid=machine.metadata.uid,
        node=node,
        provider_id=machine.spec.provider_id or status.provider_id,
        requested=parse_time(machine.metadata.creation_timestamp),
        vm_created=next(
            (true_since(conditions, name) for name in _VM_CONDITIONS if true_since(conditions, name) is not None), None
        ),
        group=next((labels[name] for name in _GROUPS if labels.get(name)), ""),
        annotations=machine.metadata.annotations,
        deleting=machine.metadata.deletion_timestamp is not None,
    )
