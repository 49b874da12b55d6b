"""Gates a pod with whole cards or shares in a namespace whose pods Tessera places.

The API server sends such pods of namespaces with the label ``tessera.dev/placement: managed`` to a path of their own,
since a review does not show the labels of the namespace. Rules:

- A pod that requests whole cards or shares, and no slice, gets the scheduling gate and nothing else.
- A pod with slices is left to :mod:`tessera.webhook.slice_admission`.
- A pod that its author has bound to a node is refused, since it would get cards before pods that wait.
- A pod whose devices no node has together, even an empty one, is refused
  (:func:`find_impossible_devices`), before it waits for ever.
- A second review of the same pod patches nothing.

What no node could hold, even if it were empty, as in :mod:`.slice_admission`; a pod's devices are all on one node:

- The nodes that the pod's author selects decide, and the groups that an autoscaler can make (ConfigMap
  ``tessera-node-groups``) whose declared labels do not contradict the selection. If none of them has the resources, all
  nodes and groups decide.
- While some node has not told its devices, nothing is certain. Nor while a new node may turn out to have GPUs
  (:mod:`tessera.api.nodes.node_cards`), or if nodes with other cards may come.
- Nothing is refused that no node has at all: the devices may come with a sharing profile, or with the first node.

Templates of such pods (:func:`check_managed_templates`): the controller of a Job whose pods are refused would try again
for ever, and the author of the Job would find the reason in events only. So an object with such a template is refused
with the same text. Rules:

- Every object of the kinds counts, whether Kueue holds it or not.
- Nothing is changed: the gate belongs to pods, and whole cards are charged by their own resource.
- Templates beyond the number that is reviewed are left to their pods; so are those of which the object makes no pod as
  it is, and those of an object that another controller runs, usually in another cluster (``managedBy``).
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from tessera.api.names import GPU_RESOURCES, MIG_RESOURCE_PREFIX
from tessera.api.nodes.node_cards import DeviceCounts
from tessera.api.pod_templates import TemplateKind, find_templates, has_pods, runs_elsewhere
from tessera.kube.quantity import count_or_zero
from tessera.limits import POD_TEMPLATES
from tessera.offers import Nodes
from tessera.reasons.words import cannot_hold
from tessera.text import one_line
from tessera.webhook.base import PodRefused, Rule, SpendTime, refuse_oversized, spend_nothing
from tessera.webhook.capabilities import Capabilities, GroupNode
from tessera.webhook.pod_json import (
    Operation,
    PodSchema,
    Spec,
    refuse_wrong_gang,
    refuse_wrong_update,
    requested_amounts,
    size_of,
)
from tessera.webhook.slice_admission import gate_operations
from tessera.webhook.template_admission import decide_each, requested_resources

Json = Mapping[str, Any]


def requested_devices(spec: Json) -> dict[str, int]:
    """Returns the whole cards and shares that a pod holds at most at a time; no number is 0.

    Init containers run one after the other, and before the app containers; a sidecar keeps its devices.
    """
    most: dict[str, int] = {}
    for resource in GPU_RESOURCES:
        kept = peak = 0
        for container in spec.get("initContainers") or ():
            amount = _amount(container, resource)
            peak = max(peak, kept + amount)
            kept += amount if container.get("restartPolicy") == "Always" else 0
        apps = sum(_amount(container, resource) for container in spec.get("containers") or ())
        if count := max(peak, kept + apps):
            most[resource] = count
    return most


def _amount(container: Json, resource: str) -> int:
    amount = ((container.get("resources") or {}).get("limits") or {}).get(resource)
    return 0 if amount is None else count_or_zero(str(amount))


def find_impossible_devices(
    wanted: Mapping[str, int], capabilities: Capabilities, nodes: Nodes, groups: Sequence[GroupNode]
) -> str:
    """Returns the reason that no node could hold a pod's whole cards and shares; empty if one may.

    Args:
        wanted: the devices that the pod holds, by resource.
        capabilities: the GPU resources of the cluster.
        nodes: the nodes that the pod's author selects.
        groups: the groups of new nodes that the author may select.
    """
    if capabilities.more_may_come or capabilities.unread_devices:
        return ""
    able = {counts: at for counts, at in capabilities.devices.items() if _has_all(counts, wanted)}
    selected = _Candidates(
        [counts for counts, at in able.items() if at & nodes],
        {each.devices: each.group for each in groups if _has_all(each.devices, wanted)},
    )
    every = _Candidates(
        list(able), {each.devices: each.group for each in capabilities.groups if _has_all(each.devices, wanted)}
    )
    chosen = selected if selected.all else every
    if not chosen.all or any(_holds(counts, wanted) for counts in chosen.all):
        return ""
    most = max(chosen.all, key=lambda counts: [dict(counts)[resource] for resource in sorted(wanted)])
    has = _amounts({resource: dict(most)[resource] for resource in wanted})
    selects = chosen is selected and chosen != every
    return f"spec.containers: {cannot_hold(_amounts(wanted), 'cards', chosen.name(most), has, selected=selects)}"


def _amounts(amounts: Mapping[str, int]) -> str:
    """Amounts in the form of :func:`tessera.reasons.words.name_profiles`; each may be any number."""
    return " + ".join(f"{count} x {resource}" for resource, count in sorted(amounts.items()) if count)


class _Candidates(msgspec.Struct):
    """The devices of nodes that may hold a pod: of present ones, and of new ones by their group."""

    present: Sequence[DeviceCounts]
    new: Mapping[DeviceCounts, str]

    @property
    def all(self) -> Sequence[DeviceCounts]:
        return [*self.present, *self.new]

    def name(self, counts: DeviceCounts) -> str:
        if counts in self.present:
            return "the largest"
        return f"the largest, a new node of group {self.new[counts]},"


def _has_all(counts: DeviceCounts, wanted: Mapping[str, int]) -> bool:
    return wanted.keys() <= dict(counts).keys()


def _holds(counts: DeviceCounts, wanted: Mapping[str, int]) -> bool:
    has = dict(counts)
    return all(has[resource] >= count for resource, count in wanted.items())


def decide_device_admission(
    pod: Json, capabilities: Capabilities, spend: SpendTime = spend_nothing
) -> Sequence[Operation]:
    """Returns the operations that gate a pod; none if it needs no change.

    Args:
        pod: the pod to be created.
        capabilities: the GPU resources of the cluster.
        spend: called before each piece of work.

    Raises:
        PodRefused: the author has bound the pod, or no node could hold its devices.
    """
    spec = pod.get("spec") or {}
    if not asks_for_devices(spec):
        return ()
    if spec.get("nodeName"):
        raise PodRefused(
            Rule.BOUND,
            f'spec.nodeName is "{one_line(spec["nodeName"])}", but the namespace has the label tessera.dev/placement: '
            "managed: Tessera places pods with whole cards there, and their author cannot bind them; use "
            "spec.nodeSelector or node affinity",
        )
    refuse_impossible_devices(spec, capabilities, spend)
    refuse_wrong_gang(pod)
    refuse_wrong_update(pod)
    return gate_operations(spec)


def asks_for_devices(spec: Json) -> bool:
    """True if a pod requests whole cards or shares, and no slice."""
    resources = {resource for _, resource, amount in requested_amounts(spec) if amount != "0"}
    return not any(name.startswith(MIG_RESOURCE_PREFIX) for name in resources) and not resources.isdisjoint(
        GPU_RESOURCES
    )


def refuse_impossible_devices(spec: Json, capabilities: Capabilities, spend: SpendTime) -> None:
    """Refuses a pod whose whole cards and shares no node could hold together, even an empty one.

    Raises:
        PodRefused: see :func:`~tessera.webhook.device_admission.find_impossible_devices`.
    """
    wanted, nodes = requested_devices(spec), capabilities.selected_by(spec, spend)
    if why := find_impossible_devices(wanted, capabilities, nodes, capabilities.groups_for(spec, spend)):
        raise PodRefused(Rule.IMPOSSIBLE, why)


def check_managed_templates(
    kind: TemplateKind, item: Json, capabilities: Capabilities, spend: SpendTime = spend_nothing
) -> Sequence[Operation]:
    """Refuses as :func:`~tessera.webhook.template_admission.decide_templates`; returns no operation.

    Raises:
        PodRefused: no node could hold a pod of a template; the text begins with the template's path.
    """
    if runs_elsewhere(item):
        return ()
    asking = (
        (path, template)
        for path, template in find_templates(kind, item)
        if not set(GPU_RESOURCES).isdisjoint(requested_resources(template)) and has_pods(item, path)
    )
    return list(decide_each(islice(asking, int(POD_TEMPLATES)), _check, capabilities, spend))


def _check(template: Json, capabilities: Capabilities, spend: SpendTime) -> Sequence[Operation]:
    shape = msgspec.convert(template, PodSchema)
    refuse_oversized(size_of(shape.spec or Spec()))
    spec = template.get("spec") or {}
    if asks_for_devices(spec):
        refuse_impossible_devices(spec, capabilities, spend)
    return ()
