"""Which pods with whole cards and shares count for the mix of requests that the ratings of nodes use.

Rules:

- A pod counts as long as it holds devices, whoever placed it. So the mix follows the cluster as pods end, and a new
  controller that sees the same pods comes to the same mix.
- CPU and memory of such a pod are those that its node has allocated, not those of a resize that waits, and at most what
  the node had when the pod was last counted. A pod that names its node itself may ask for any amount until kubelet
  refuses it.
- Of the waiting pods of a namespace the oldest count, up to a limit of devices: enough that a card is kept for a pod
  that waits for it, and too little for a tenant who makes many gated pods. They count for the shares of the requests
  and the prices of models, not for the CPU and memory beside a card: no node has allocated these amounts yet.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Protocol

from tessera.api.names import HOSTNAME_LABEL, PodUid
from tessera.controller.objects.node_constraints import NodeConstraints
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.placement.ratings.card_request import CPU_STEP, MEMORY_STEP

#: Most devices: cards and shares of a namespace's oldest waiting pods that count for shares of requests and prices of
#: models. Two nodes; gated pods of one tenant hardly change where others go; pods count in full once they hold cards.
COUNTED_WAITING_DEVICES = 16

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class AskedDevices:
    """What pods request that differ in nothing else of interest.

    Attributes:
        resource: the resource of the devices.
        devices: their number.
        cpu: thousandths of a CPU.
        memory: MiB.
        constraints: the nodes that suit, without tolerations and without the pin of a placed pod.
    """

    resource: str
    devices: int
    cpu: int
    memory: int
    constraints: NodeConstraints


def asked_devices(pod: PodInfo, node: NodeInfo | None = None) -> AskedDevices | None:
    """Returns what a pod requests, in whole steps of CPU and memory; None without devices, or with two resources.

    Args:
        pod: the pod.
        node: the node where it holds devices: then, what it has there counts; None for what it asks for.
    """
    if len(set(pod.devices)) != 1:
        return None
    cpu, memory = (_amount(name, pod, node) for name in ("cpu", "memory"))
    memory //= _MIB
    selector = tuple(each for each in pod.constraints.selector if each[0] != HOSTNAME_LABEL)
    return AskedDevices(
        pod.devices[0],
        len(pod.devices),
        -(-cpu // CPU_STEP) * CPU_STEP,
        -(-memory // MEMORY_STEP) * MEMORY_STEP,
        replace(pod.constraints, selector=selector, tolerations=()),
    )


def _amount(resource: str, pod: PodInfo, node: NodeInfo | None) -> int:
    if node is None:
        return pod.amounts.get(resource, 0)
    held = pod.amounts if pod.allocated is None else pod.allocated
    return min(held.get(resource, 0), node.allocatable.get(resource, 0))


class RequestCounts(Protocol):
    """Counts requests."""

    def count(self, asked: AskedDevices, pods: int, *, hold: bool) -> None:
        """Counts pods with a request, which they hold or wait for; fewer of them with a negative number."""
        ...


#: A waiting pod: creation time, UID, what it requests.
_Waiting = tuple[str, PodUid, AskedDevices]


class DeviceDemand:
    """Counts what pods request.

    Args:
        counts: takes over what is counted.
    """

    def __init__(self, counts: RequestCounts) -> None:
        self._counts = counts
        #: By pod that holds devices, its request.
        self._held: dict[PodUid, AskedDevices] = {}
        #: By waiting pod its namespace, and by namespace its waiting pods, the oldest first; no list is empty.
        self._namespace_of: dict[PodUid, tuple[str, _Waiting]] = {}
        self._waiting: dict[str, list[_Waiting]] = {}
        #: By namespace, the first of these, which count; no dict is empty.
        self._counted: dict[str, dict[PodUid, AskedDevices]] = {}

    def observe(self, uid: PodUid, pod: PodInfo | None, node: NodeInfo | None) -> None:
        """Counts a pod as it is now.

        Args:
            uid: its UID.
            pod: the pod; None once it has gone or ended.
            node: the node where it holds devices; None if it waits.
        """
        asked = asked_devices(pod, node) if pod is not None else None
        self._hold(uid, asked if node is not None else None)
        waits = None if pod is None or asked is None or node is not None else (pod.namespace, (pod.created, uid, asked))
        self._wait(uid, waits)

    def _hold(self, uid: PodUid, asked: AskedDevices | None) -> None:
        before = self._held.pop(uid, None)
        if asked is not None:
            self._held[uid] = asked
        if before != asked:
            if before is not None:
                self._counts.count(before, -1, hold=True)
            if asked is not None:
                self._counts.count(asked, 1, hold=True)

    def _wait(self, uid: PodUid, waits: tuple[str, _Waiting] | None) -> None:
        before = self._namespace_of.pop(uid, None)
        if waits is not None:
            self._namespace_of[uid] = waits
        if before == waits:
            return
        if before is not None:
            namespace, one = before
            place = bisect_left(self._waiting[namespace], one[:2], key=_rank)
            del self._waiting[namespace][place]
            self._recount(namespace, place)
        if waits is not None:
            namespace, one = waits
            place = bisect_left(self._waiting.setdefault(namespace, []), one[:2], key=_rank)
            self._waiting[namespace].insert(place, one)
            self._recount(namespace, place)

    def _recount(self, namespace: str, place: int) -> None:
        """After a change at this place of the waiting pods, counts the first of them."""
        before = self._counted.get(namespace, {})
        if place > len(before):
            return  # behind the first pod that does not count
        now: dict[PodUid, AskedDevices] = {}
        devices = 0
        for _, uid, asked in self._waiting[namespace]:
            devices += asked.devices
            if devices > COUNTED_WAITING_DEVICES:
                break
            now[uid] = asked
        if now:
            self._counted[namespace] = now
        else:
            self._counted.pop(namespace, None)
        if not self._waiting[namespace]:
            del self._waiting[namespace]
        for uid, asked in before.items():
            if now.get(uid) is not asked:
                self._counts.count(asked, -1, hold=False)
        for uid, asked in now.items():
            if before.get(uid) is not asked:
                self._counts.count(asked, 1, hold=False)


def _rank(one: _Waiting) -> tuple[str, PodUid]:
    return one[:2]
