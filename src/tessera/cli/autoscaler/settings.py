"""Reads a cluster autoscaler's settings: OpenShift's object, the flags of a Deployment, MachineSets. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tessera.cli.base.durations import parse_duration
from tessera.kube.resources.meta import Resource
from tessera.provisioning.timer_advice import CAPI_GROUP, CAPI_OPTIONS, OPENSHIFT_GROUP
from tessera.provisioning.timers import DEFAULTS, Timers
from tessera.provisioning.warm_nodes import CUTOFF

CLUSTER_AUTOSCALERS = Resource(
    "autoscaling.openshift.io", "v1", "clusterautoscalers", "ClusterAutoscaler", False, dict[str, Any]
).as_dicts()

_FLAGS = {
    "max-node-provision-time": "max_node_provision",
    "max-node-startup-time": "max_node_startup",
    "scale-down-unneeded-time": "unneeded",
    "scale-down-delay-after-add": "delay_after_add",
}
_GPU_TOTAL, _CUTOFF, _SCALE_DOWN = "gpu-total", "expendable-pods-priority-cutoff", "scale-down-enabled"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for all node groups.

    Attributes:
        timers: the present timers; each is None if no autoscaler was found.
        gpu_types: types of cards for which it has limits.
        cutoff: pods of a lower priority cause no scale-up.
        scale_down: True if it removes nodes; None if no object sets it.
    """

    timers: Timers = Timers()
    gpu_types: tuple[str, ...] = ()
    cutoff: int = CUTOFF
    scale_down: bool | None = None


def from_openshift(scaler: Mapping[str, Any]) -> Settings:
    """Settings of a ClusterAutoscaler object; missing fields have the autoscaler's defaults."""
    spec = _object(scaler.get("spec"))
    down = _object(spec.get("scaleDown"))
    gpus = _object(spec.get("resourceLimits")).get("gpus")
    threshold, enabled = spec.get("podPriorityThreshold"), down.get("enabled")
    return Settings(
        timers=override_timers(
            DEFAULTS,
            max_node_provision=spec.get("maxNodeProvisionTime"),
            unneeded=down.get("unneededTime"),
            delay_after_add=down.get("delayAfterAdd"),
        ),
        gpu_types=tuple(str(_object(each).get("type", "")) for each in gpus) if isinstance(gpus, list) else (),
        cutoff=threshold if isinstance(threshold, int) else CUTOFF,
        scale_down=enabled if isinstance(enabled, bool) else None,
    )


def from_deployment(deployment: Mapping[str, Any]) -> Settings:
    """Settings from the flags of a Deployment's containers."""
    timers: dict[str, str] = {}
    types: list[str] = []
    cutoff, scale_down = CUTOFF, None
    for name, value in _flags(deployment):
        if name in _FLAGS:
            timers[_FLAGS[name]] = value
        elif name == _GPU_TOTAL:
            types.append(value.rsplit(":", 2)[0])
        elif name == _CUTOFF and value.lstrip("-").isdecimal():
            cutoff = int(value)
        elif name == _SCALE_DOWN:
            scale_down = value.lower() != "false"
    return Settings(
        timers=override_timers(DEFAULTS, **timers), gpu_types=tuple(types), cutoff=cutoff, scale_down=scale_down
    )


def override_timers(timers: Timers, **texts: object) -> Timers:
    """The timers, replaced by those that an object sets; a text that is not a duration changes nothing."""
    found = {}
    for name, text in texts.items():
        try:
            if text:
                found[name] = parse_duration(str(text))
        except ValueError:
            continue  # the autoscaler refuses it too
    return msgspec.structs.replace(timers, **found)


def _flags(deployment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    spec = _object(_object(_object(deployment.get("spec")).get("template")).get("spec"))
    for container in spec.get("containers") or ():
        words = [str(each) for each in (*(container.get("command") or ()), *(container.get("args") or ()))]
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, equals, value = word.lstrip("-").partition("=")
            if word.startswith("-"):
                yield name, value if equals or following.startswith("--") else following


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


#: Kinds of node groups; MachineDeployments last, since they own MachineSets.
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
#: The autoscaler manages only sets with this annotation (``nodeGroupMinSizeAnnotationKey``).
_SIZE = "/cluster-api-autoscaler-node-group-min-size"

#: Label of a MachineDeployment with its name in the cluster's topology, which is the name of its nodes' group.
_TOPOLOGY = "topology.cluster.x-k8s.io/deployment-name"


class SetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one MachineSet or MachineDeployment.

    Attributes:
        api_group: the API group of its kind; its annotations begin with it.
        timers: the node group's own timers; each is None if the autoscaler's holds.
        labels: labels of its new nodes; None if the kind does not set labels.
        owner: name of its MachineDeployment; empty for none.
        autoscaled: True if the cluster autoscaler manages it: the set or its owner has a minimum size.
    """

    api_group: str
    timers: Timers = Timers()
    labels: Mapping[str, str] | None = None
    owner: str = ""
    autoscaled: bool = False


def facts_of_sets(
    items: Iterable[Mapping[str, Any]], api_group: str, known: Mapping[str, SetFacts]
) -> dict[str, SetFacts]:
    """Settings of the sets of one kind, by name; also known sets that take over settings of their owners.

    Args:
        items: the objects.
        api_group: the API group of their kind.
        known: settings of the sets that were read before.
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
        timers=override_timers(
            Timers(),
            **{timer: annotations.get(f"{api_group}{CAPI_OPTIONS}{name}") for name, timer in _OPTIONS.items()},
        ),
        labels=_template_labels(item) if api_group == OPENSHIFT_GROUP else None,
        autoscaled=f"{api_group}{_SIZE}" in annotations,
        owner=next((str(each.get("name")) for each in owners if each.get("kind") == "MachineDeployment"), ""),
    )


def _template_labels(item: Mapping[str, Any]) -> dict[str, str]:
    """``spec.template.spec.metadata.labels``: labels of nodes, not of Machines (``spec.template.metadata.labels``)."""
    found: Any = item
    for step in ("spec", "template", "spec", "metadata", "labels"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}


NODE_POOLS = Resource("karpenter.sh", "v1", "nodepools", "NodePool", False, dict[str, Any])
