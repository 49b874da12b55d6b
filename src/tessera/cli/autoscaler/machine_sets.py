"""What MachineSets and MachineDeployments say of a node group: its own timers, and labels of the nodes to come. Pure.

The autoscaler reads annotations of the MachineDeployment where there is one, else of the MachineSet (clusterapi
provider of the cluster autoscaler). Labels in a template reach nodes only with OpenShift's own kind; Cluster API hands
on some of them, so that there the nodes have to be looked at.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tessera.cli.autoscaler.settings import over
from tessera.kube.resources.meta import Resource
from tessera.provisioning.advise.emit import CAPI_GROUP, CAPI_OPTIONS, OPENSHIFT_GROUP
from tessera.provisioning.advise.timers import Timers

#: MachineDeployments last.
SETS = (
    Resource(OPENSHIFT_GROUP, "v1beta1", "machinesets", "MachineSet", True, dict[str, Any]),
    Resource(CAPI_GROUP, "v1beta1", "machinesets", "MachineSet", True, dict[str, Any]),
    Resource(CAPI_GROUP, "v1beta1", "machinedeployments", "MachineDeployment", True, dict[str, Any]),
)
_OPTIONS = {
    "maxnodeprovisiontime": "max_node_provision",
    "maxnodestartuptime": "max_node_startup",
    "scaledownunneededtime": "unneeded",
}
#: Without it the autoscaler leaves a set alone (``nodeGroupMinSizeAnnotationKey``).
_SIZE = "/cluster-api-autoscaler-node-group-min-size"

#: Label of a MachineDeployment: what the cluster's topology calls it, and what its nodes' group is called after.
_TOPOLOGY = "topology.cluster.x-k8s.io/deployment-name"


class SetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one set says.

    Attributes:
        api_group: of its kind; its annotations begin with it.
        timers: the node group's own; None in each that it leaves to the autoscaler.
        labels: of the nodes to come; None where the set does not decide that.
        owner: name of its MachineDeployment; empty for none.
        autoscaled: the cluster autoscaler manages it: it, or its owner, says how large it may be.
    """

    api_group: str
    timers: Timers = Timers()
    labels: Mapping[str, str] | None = None
    owner: str = ""
    autoscaled: bool = False


def facts_of_sets(
    items: Iterable[Mapping[str, Any]], api_group: str, known: Mapping[str, SetFacts]
) -> dict[str, SetFacts]:
    """What sets of one kind say, by name; sets that are known already take over what their owners say.

    Args:
        items: the objects.
        api_group: of their kind.
        known: what the sets say that were read before.
    """
    found: dict[str, SetFacts] = {}
    for item in items:
        name = str(item["metadata"]["name"])
        facts = _facts(item, api_group)
        topology = (item["metadata"].get("labels") or {}).get(_TOPOLOGY)
        found |= {each: facts for each in (name, topology) if each}
        for owned, each in known.items():
            if each.owner == name and each.api_group == api_group:
                found[owned] = msgspec.structs.replace(each, timers=facts.timers, autoscaled=facts.autoscaled)
    return found


def _facts(item: Mapping[str, Any], api_group: str) -> SetFacts:
    metadata = item["metadata"]
    annotations = metadata.get("annotations") or {}
    owners = metadata.get("ownerReferences") or ()
    return SetFacts(
        api_group=api_group,
        timers=over(
            Timers(),
            **{timer: annotations.get(f"{api_group}{CAPI_OPTIONS}{name}") for name, timer in _OPTIONS.items()},
        ),
        labels=_template_labels(item) if api_group == OPENSHIFT_GROUP else None,
        autoscaled=f"{api_group}{_SIZE}" in annotations,
        owner=next((str(each.get("name")) for each in owners if each.get("kind") == "MachineDeployment"), ""),
    )


def _template_labels(item: Mapping[str, Any]) -> dict[str, str]:
    """``spec.template.spec.metadata.labels``: not those of the Machine, which stand one step higher."""
    found: Any = item
    for step in ("spec", "template", "spec", "metadata", "labels"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}
