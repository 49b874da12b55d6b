"""Node groups of a cloud, their instances, and the Machine objects of Cluster API for them.

Groups and instances are values only. Machine objects have the fields that clients read: time of request, phase, and
node. Their definition's schema keeps every field, since the lab does not check them.
"""

import random
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from tessera.clock import rfc3339
from tessera_lab.cluster.options import LabNodeSpec
from tessera_lab.simulation.cost_model import draw_log_normal


class RandomDelay(msgspec.Struct, frozen=True, kw_only=True):
    """A random duration: log-normal around its mean, or constant.

    Attributes:
        mean: seconds.
        spread: standard deviation as a part of the mean; 0 for a constant.
    """

    mean: float
    spread: float = 0.0

    def draw(self, rng: random.Random) -> float:
        """One duration, seconds."""
        return draw_log_normal(rng, self.mean, self.spread)


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Machines that are alike.

    Attributes:
        name: the group's name, as of a MachineSet.
        template: node of each machine; its name is not used.
        minimum: lowest number of machines that an autoscaler may leave; the number at the start.
        maximum: highest number of machines.
        labels: labels of the Node objects from registration on.
        taints: taints of the Node objects from registration on.
        vm: from a request until the virtual machine exists and costs money.
        join: from then until its kubelet registers.
        annotations: annotations of the group, which autoscalers read.
    """

    name: str
    template: LabNodeSpec
    minimum: int = 0
    maximum: int = 10
    labels: Mapping[str, str] = {}
    taints: tuple[Mapping[str, Any], ...] = ()
    vm: RandomDelay = RandomDelay(mean=0.0)
    join: RandomDelay = RandomDelay(mean=0.0)
    annotations: Mapping[str, str] = {}

    @property
    def gpus(self) -> int:
        """Cards of one machine."""
        return len(self.template.cards)


class InstanceState(Enum):
    """The phase of an instance."""

    CREATING = "creating"  # requested, no virtual machine yet
    BOOTING = "booting"  # the machine exists, its node has not registered
    JOINED = "joined"
    DELETING = "deleting"


class CloudInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of a group; times in seconds since 1970.

    Attributes:
        name: name of the Machine and of the node.
        group: the group's name.
        provider_id: as the Node's ``spec.providerID``.
        requested: when somebody asked for it.
        state: how far it is.
        vm: when its virtual machine existed.
        joined: when its kubelet registered.
    """

    name: str
    group: str
    provider_id: str
    requested: float
    state: InstanceState = InstanceState.CREATING
    vm: float | None = None
    joined: float | None = None


#: Where Machines live; the namespace of OpenShift's Cluster API.
NAMESPACE = "openshift-cluster-api"
CLUSTER = "lab"

#: Annotations that Cluster API puts on a node.
MACHINE_ANNOTATION = "cluster.x-k8s.io/machine"
NAMESPACE_ANNOTATION = "cluster.x-k8s.io/cluster-namespace"
CLUSTER_ANNOTATION = "cluster.x-k8s.io/cluster-name"
OWNER_KIND_ANNOTATION = "cluster.x-k8s.io/owner-kind"
OWNER_NAME_ANNOTATION = "cluster.x-k8s.io/owner-name"
#: Label of a Machine: the MachineSet that it belongs to.
SET_LABEL = "cluster.x-k8s.io/set-name"

_PHASES = {
    InstanceState.CREATING: "Provisioning",
    InstanceState.BOOTING: "Provisioned",
    InstanceState.JOINED: "Running",
    InstanceState.DELETING: "Deleting",
}


def machine_definition() -> dict[str, Any]:
    """The CustomResourceDefinition of Machines."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "machines.cluster.x-k8s.io"},
        "spec": {
            "group": "cluster.x-k8s.io",
            "scope": "Namespaced",
            "names": {
                "kind": "Machine",
                "listKind": "MachineList",
                "plural": "machines",
                "singular": "machine",
                "shortNames": ["ma"],
            },
            "versions": [
                {
                    "name": "v1beta1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": "NodeName", "type": "string", "jsonPath": ".status.nodeRef.name"},
                        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {
                                name: {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                                for name in ("spec", "status")
                            },
                        }
                    },
                }
            ],
        },
    }


def build_machine(instance: CloudInstance) -> dict[str, Any]:
    """The Machine of an instance that was just asked for."""
    return {
        "metadata": {
            "name": instance.name,
            "namespace": NAMESPACE,
            "labels": {SET_LABEL: instance.group, "cluster.x-k8s.io/cluster-name": CLUSTER},
        },
        "spec": {"clusterName": CLUSTER, "bootstrap": {}, "infrastructureRef": {}},
    }


def provider_patch(instance: CloudInstance) -> dict[str, Any]:
    """The patch of the spec once the virtual machine exists."""
    return {"spec": {"providerID": instance.provider_id}}


def status_patch(instance: CloudInstance) -> dict[str, Any]:
    """The patch of the status for the machine's phase."""
    conditions = []
    for kind, since in (("InfrastructureReady", instance.vm), ("NodeHealthy", instance.joined)):
        if since is not None:
            conditions.append({"type": kind, "status": "True", "lastTransitionTime": rfc3339(since)})
    status: dict[str, Any] = {"phase": _PHASES[instance.state], "conditions": conditions}
    if instance.joined is not None:
        status["nodeRef"] = {"apiVersion": "v1", "kind": "Node", "name": instance.name}
    return {"status": status}


def node_annotations(instance: CloudInstance) -> dict[str, str]:
    """The annotations that Cluster API puts on the node."""
    return {
        MACHINE_ANNOTATION: instance.name,
        NAMESPACE_ANNOTATION: NAMESPACE,
        CLUSTER_ANNOTATION: CLUSTER,
        OWNER_KIND_ANNOTATION: "MachineSet",
        OWNER_NAME_ANNOTATION: instance.group,
    }
