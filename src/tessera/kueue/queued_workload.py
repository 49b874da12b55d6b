"""The values of a Workload that decide about its admission check, and the pods that would come from it.

A pod set's template is read as a pod behind our gate. Pods of one set differ only in their name, so a set is read once.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tessera.api.names import GATE, PodUid
from tessera.controller.objects.pod_info import PodInfo, read_pod
from tessera.kube.resources import ObjectMeta, Pod, SchedulingGate, Uid
from tessera.kueue.objects import PodSet, Workload

#: Most pods of one Workload of Kueue, and of all that it has just admitted, in one packing test. As many as one step
#: plans together; further ones are placed when there is room.
CHECKED_PODS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedWorkload:
    """A Workload whose quota is reserved and that waits for our answer.

    Attributes:
        namespace: its namespace.
        name: its name.
        uid: its UID.
        version: its resourceVersion; an answer counts for this version only.
        checks: names of our checks that are pending.
        since: the time from which the first of these checks is pending, as it is written; empty if unknown.
        owners: UIDs of the objects that it is for.
        attempts: how often it was sent back.
        pods: its pods that Tessera will place, in the order in which they are planned; at most :data:`CHECKED_PODS`.
        fault: an error in its requests, for which no node can ever take it; empty if there is none.
    """

    namespace: str
    name: str
    uid: str
    version: str
    checks: tuple[str, ...]
    since: str
    owners: frozenset[str]
    attempts: int
    pods: tuple[PodInfo, ...]
    fault: str


def read_workload(
    item: Workload,
    ours: Mapping[str, object],
    labels: Mapping[str, Mapping[str, str]],
    is_managed: Callable[[str], bool] = lambda _: False,
) -> QueuedWorkload | None:
    """Returns the values of a Workload; ``None`` if it does not wait for an answer of ours.

    Args:
        item: the Workload.
        ours: names of the admission checks that Tessera answers.
        labels: the node labels of each flavor.
        is_managed: True for a namespace whose pods with whole cards Tessera places.
    """
    if not item.is_true("QuotaReserved") or item.is_true("Admitted") or item.is_true("Finished"):
        return None
    pending = [each for each in item.status.admission_checks if each.name in ours and each.state == "Pending"]
    if not pending:
        return None
    pods: list[PodInfo] = []
    fault = ""
    for pod_set in item.spec.pod_sets:
        one = _read_pod_set(item, pod_set, _flavor_labels(item, pod_set.name, labels))
        if one.devices and not is_managed(item.metadata.namespace):
            continue  # the scheduler places them
        fault = fault or one.fault
        if one.profiles:
            count = min(max(pod_set.count, 0), CHECKED_PODS - len(pods))
            pods += (_numbered(one, pod_set.name, number) for number in range(count))
    meta, requeue = item.metadata, item.status.requeue_state
    return QueuedWorkload(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        checks=tuple(each.name for each in pending),
        since=pending[0].last_transition_time or "",
        owners=frozenset(each.uid for each in meta.owner_references),
        attempts=requeue.count if requeue is not None else 0,
        pods=tuple(pods),
        fault=fault,
    )


def _flavor_labels(item: Workload, name: str, labels: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    """The labels that Kueue will add to the node selector of a pod set."""
    found: dict[str, str] = {}
    for assignment in item.status.admission.pod_set_assignments if item.status.admission is not None else ():
        if assignment.name == name:
            for flavor in assignment.flavors.values():
                found |= labels.get(flavor, {})
    return found


def _read_pod_set(item: Workload, pod_set: PodSet, labels: Mapping[str, str]) -> PodInfo:
    meta, template = item.metadata, pod_set.template
    spec = msgspec.structs.replace(
        template.spec,
        node_selector={**template.spec.node_selector, **labels},
        scheduling_gates=(SchedulingGate(name=GATE),),
        priority=item.spec.priority,
    )
    head = ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        labels=template.metadata.labels,
        annotations=template.metadata.annotations,
        owner_references=meta.owner_references,
        creation_timestamp=meta.creation_timestamp,
    )
    return read_pod(Pod(metadata=head, spec=spec))


def _numbered(pod: PodInfo, pod_set: str, number: int) -> PodInfo:
    name = f"{pod.name}/{pod_set}-{number}"
    return dataclasses.replace(pod, uid=PodUid(Uid(f"{pod.uid}/{pod_set}-{number}")), name=name)


def outstanding(pods: Sequence[PodInfo], placed: Sequence[PodInfo]) -> list[PodInfo]:
    """Returns the expected pods that have no slices yet; an expected pod is any that asks for the same."""
    left = list(pods)
    for pod in placed:
        found = next((index for index, each in enumerate(left) if each.profiles == (pod.profiles or pod.devices)), None)
        if found is not None:
            del left[found]
    return left
