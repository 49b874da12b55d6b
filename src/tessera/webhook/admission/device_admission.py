"""Gates a pod with whole cards or shares in a namespace whose pods Tessera places.

The API server sends such pods of namespaces with the label ``tessera.dev/placement: managed`` to a path of their own,
since a review does not show the labels of the namespace. Rules:

- A pod that requests whole cards or shares, and no slice, gets the scheduling gate and nothing else.
- A pod with slices is left to :mod:`tessera.webhook.admission.slice_admission`.
- A pod that its author has bound to a node is refused, since it would get cards before pods that wait.
- A pod whose devices no node has together, even an empty one, is refused
  (:mod:`tessera.webhook.admission.impossible_devices`), before it waits for ever.
- A second review of the same pod patches nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.api.names import GPU_RESOURCES, MIG_RESOURCE_PREFIX
from tessera.text import one_line
from tessera.webhook.admission.gang_sizes import refuse_wrong_gang
from tessera.webhook.admission.impossible_devices import find_impossible_devices, requested_devices
from tessera.webhook.admission.json_patch import Operation
from tessera.webhook.admission.slice_admission import gate_operations
from tessera.webhook.base.budget import PodRefused, Rule, SpendTime, spend_nothing
from tessera.webhook.nodes.capabilities import Capabilities

Json = Mapping[str, Any]


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
    return gate_operations(spec)


def asks_for_devices(spec: Json) -> bool:
    """True if a pod requests whole cards or shares, and no slice."""
    resources = set(_limits(spec))
    return not any(name.startswith(MIG_RESOURCE_PREFIX) for name in resources) and not resources.isdisjoint(
        GPU_RESOURCES
    )


def refuse_impossible_devices(spec: Json, capabilities: Capabilities, spend: SpendTime) -> None:
    """Refuses a pod whose whole cards and shares no node could hold together, even an empty one.

    Raises:
        PodRefused: see :func:`~tessera.webhook.admission.impossible_devices.find_impossible_devices`.
    """
    wanted, nodes = requested_devices(spec), capabilities.selected_by(spec, spend)
    if why := find_impossible_devices(wanted, capabilities, nodes, capabilities.groups_for(spec, spend)):
        raise PodRefused(Rule.IMPOSSIBLE, why)


def _limits(spec: Json) -> Iterator[str]:
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            if str(amount) != "0":
                yield name
