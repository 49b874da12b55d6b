"""Kubelet's admission of a pod that was bound to its node, with kubelet's texts.

The same filters as the scheduler's, run again by the node (``pkg/kubelet/lifecycle/predicate.go``): a pod may have been
bound by somebody else, or the node may have changed in between. Extended resources that no plugin of this node has
registered are not checked. The device manager admits devices.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tessera_lab.scheduler.filters.node_placement import find_untolerated, selector_matches
from tessera_lab.scheduler.state.node_cache import CachedPod
from tessera_lab.scheduler.state.pod_requests import Amounts

Json = Mapping[str, Any]


class AdmissionRejection(msgspec.Struct, frozen=True):
    """Kubelet rejects the pod for good: ``status.reason`` and the rest of ``status.message``."""

    reason: str
    message: str


def check_admission(
    pod: CachedPod,
    *,
    name: str,
    labels: Mapping[str, str],
    taints: Iterable[Json],
    allocatable: Amounts,
    others: Iterable[CachedPod],
) -> AdmissionRejection | None:
    """Returns why the node refuses the pod, or None.

    Args:
        pod: the pod to admit.
        name: the node's name.
        labels: the node's labels.
        taints: the node's taints; only effect NoExecute counts here.
        allocatable: the node's allocatable resources, in the scheduler's units.
        others: the pods that the node runs.
    """
    taint = find_untolerated(list(taints), pod.spec.get("tolerations") or (), ("NoExecute",))
    if taint is not None:
        text = f"node(s) had untolerated taint {{{taint.get('key', '')}: {taint.get('value') or ''}}}"
        return AdmissionRejection("TaintToleration", f"Predicate TaintToleration failed: {text}")
    if not selector_matches(pod.spec, labels, name):
        text = "node(s) didn't match Pod's node affinity/selector"
        return AdmissionRejection("NodeAffinity", f"Predicate NodeAffinity failed: {text}")
    running = list(others)
    if any(pod.ports & other.ports for other in running):
        text = "node(s) didn't have free ports for the requested pod ports"
        return AdmissionRejection("NodePorts", f"Predicate NodePorts failed: {text}")
    return _resources(pod, allocatable, running)


def _resources(pod: CachedPod, allocatable: Amounts, others: list[CachedPod]) -> AdmissionRejection | None:
    for resource, requested in pod.requests.items():
        if resource not in allocatable:
            continue
        used = sum(other.requests.get(resource, 0) for other in others)
        capacity = allocatable[resource]
        if requested > capacity - used:
            return AdmissionRejection(
                f"OutOf{resource}",
                f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, "
                f"capacity: {capacity}",
            )
    return None
