"""Machine objects of Cluster API, as far as clients read them: time of request, phase, and node.

The definition's schema keeps every field, since the lab does not check them.
"""

from typing import Any

from tessera.clock import rfc3339
from tessera_lab.cloud.node_groups import CloudInstance, InstanceState

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
