"""Warnings that ``kubectl apply`` prints: requests that admission lets through, and that no node serves as it is now.

Such a pod waits, and kube-scheduler says only ``Insufficient nvidia.com/gpus``. It is not refused, since a node that
offers the name may come. Rules:

- A name that resembles one of a GPU gets a warning with the right name, unless some node offers it as it is written.
- A right name that no node offers gets one with what to ask for instead. It gets none while nodes may come, or have not
  told yet what they have.
- Several slices of one container get one where a node's driver shows programs only the first of them.
- Devices that no node could hold together, even an empty one, get the text with which a managed namespace refuses them.
- A pod that a controller made gets none: nobody reads them there. The objects of :data:`WORKLOADS` get those of their
  templates, and the text with which a pod of a template will be refused: their controllers would note that in events
  only, with which nobody counts after ``created``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import MIG_RESOURCE_PREFIX, WHOLE_CARDS, profile_of
from tessera.api.pods.resource_advice import advise, find_correction, is_gpu_like
from tessera.api.pods.templates import TemplateKind, find_templates
from tessera.kube.quantity import count_or_zero
from tessera.offers.selection import Nodes
from tessera.text import one_line
from tessera.webhook.admission.annotations import warn_of_idle_update
from tessera.webhook.admission.decision import whole_card_slice
from tessera.webhook.admission.device_admission import find_impossible_devices, requested_devices
from tessera.webhook.admission.template_admission import decide_template
from tessera.webhook.base import PodRefused, SpendTime, spend_nothing
from tessera.webhook.nodes.capabilities import Capabilities

Json = Mapping[str, Any]

#: The label of the driver's first number, and the first driver with which CUDA shows a program all its MIG devices
#: (CUDA release notes of 12.8, driver R570).
_DRIVER_LABEL, _SEES_ALL = "nvidia.com/cuda.driver-version.major", "570"


def find_warnings(
    pod: Json, capabilities: Capabilities, spend: SpendTime = spend_nothing, kind: str = "Pod"
) -> Iterator[str]:
    """Yields the warnings for the author of a pod that is admitted.

    Args:
        pod: the pod, or a template of one, as its author wrote it.
        capabilities: the GPU resources of the cluster.
        spend: called before each piece of work.
        kind: the kind of the object whose template it is.
    """
    if any(each.get("controller") for each in (pod.get("metadata") or {}).get("ownerReferences") or ()):
        return
    spec = pod.get("spec") or {}
    nodes = capabilities.selected_by(spec, spend)
    replaced, asked = whole_card_slice(pod, nodes, capabilities, spend), False
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        spend()
        limits = (container.get("resources") or {}).get("limits") or {}
        wanted = {name: str(amount) for name, amount in limits.items() if is_gpu_like(name) and str(amount) != "0"}
        if replaced:
            wanted.pop(WHOLE_CARDS, None)
        asked = asked or bool(wanted)
        where = f'container "{one_line(container.get("name") or "")}":'
        yield from (f"{where} {each}" for each in _not_offered(wanted, capabilities))
        yield from (f"{where} {each}" for each in _hidden_slices(wanted, nodes, capabilities))
    if not asked:
        return
    yield from warn_of_idle_update(pod, kind)
    devices = {} if replaced else requested_devices(spec)
    if why := find_impossible_devices(devices, capabilities, nodes, capabilities.groups_for(spec, spend)):
        yield why


def _not_offered(wanted: Mapping[str, str], capabilities: Capabilities) -> Iterator[str]:
    offered = capabilities.offered
    for name in wanted:
        if name in offered:
            continue
        shown, right = one_line(name), find_correction(name, offered)
        if right:
            yield f"no node offers {shown}: request {right} instead"
        elif not capabilities.may_grow:
            steps = advise(offered, {name: count_or_zero(wanted[name])}, [name])
            yield f"no node offers {shown} now: {steps[0]}"


def _hidden_slices(wanted: Mapping[str, str], nodes: Nodes, capabilities: Capabilities) -> Iterator[str]:
    slices = {name: count_or_zero(amount) for name, amount in wanted.items() if name.startswith(MIG_RESOURCE_PREFIX)}
    if sum(slices.values()) < 2:
        return
    for profile in map(profile_of, slices):
        nodes &= capabilities.on_demand.get(profile, 0) | capabilities.fixed.get(profile, 0)
    old = capabilities.labels.nodes_matching(_DRIVER_LABEL, "Lt", (_SEES_ALL,)) & nodes
    if old:
        names = capabilities.names(old)
        where = f"node {names[0]}" if len(names) == 1 else f"{len(names)} nodes, such as {names[0]}"
        yield (
            f"asks for {sum(slices.values())} slices, and with the driver of {one_line(where)}, older than"
            f" R{_SEES_ALL}, CUDA shows a program only the first: ask for one larger slice, or use a container for each"
        )


def find_template_warnings(
    kind: TemplateKind, item: Json, capabilities: Capabilities, spend: SpendTime = spend_nothing
) -> Sequence[str]:
    """Returns the warnings for the author of an object with templates; each begins with the template's path.

    Args:
        kind: the object's kind.
        item: the object to be created or changed.
        capabilities: the GPU resources of the cluster.
        spend: called before each piece of work.

    Raises:
        msgspec.ValidationError: a template is not that of a pod.
    """
    return [
        f"{'.'.join(path)}: {warning}"
        for path, template in find_templates(kind, item)
        for warning in _template_warnings(template, kind.kind, capabilities, spend)
    ]


def _template_warnings(template: Json, kind: str, capabilities: Capabilities, spend: SpendTime) -> Sequence[str]:
    try:
        decide_template(template, capabilities, spend)
        return list(find_warnings(template, capabilities, spend, kind))
    except PodRefused as refused:
        return [f"its pods will be refused: {refused}"]
    except msgspec.ValidationError:
        return ()  # the API server refuses the object
