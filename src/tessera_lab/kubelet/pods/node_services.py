"""What a node has for the workers of its pods: services, its addresses, and kubelet's admission.

A pod that was bound to the node is admitted by the same filters as the scheduler's, with kubelet's texts. They run
again by the node (``pkg/kubelet/lifecycle/predicate.go``): a pod may have been bound by somebody else, or the node may
have changed in between. Extended resources that no plugin of this node has registered are not checked. The device
manager admits devices.
"""

import asyncio
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera_lab.kubelet.claim_manager import ClaimManager
from tessera_lab.kubelet.containers.launcher import Launcher
from tessera_lab.kubelet.devices.device_manager import DeviceManager
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


class NodeNetwork:
    """Addresses on a node: its own, and those of its pods, released ones first.

    Args:
        host_ip: the node's own address.
        pod_network: the first two or three bytes of pod addresses, e.g. ``10.244`` or ``10.244.1``.

    Attributes:
        host_ip: the node's own address.
    """

    def __init__(self, host_ip: str, pod_network: str) -> None:
        self.host_ip = host_ip
        self._free: list[str] = []
        wide = pod_network.count(".") == 1
        hosts = (f"{number // 256}.{number % 256}" for number in range(2, 65534)) if wide else map(str, range(2, 255))
        self._fresh: Iterator[str] = (f"{pod_network}.{host}" for host in hosts)

    def allocate(self) -> str:
        """Returns an address that no pod of the node has."""
        return self._free.pop(0) if self._free else next(self._fresh)

    def release(self, address: str) -> None:
        """Frees the address of a pod that is gone."""
        self._free.append(address)


class WorkerNode(Protocol):
    """The node as the workers of its pods see it.

    Attributes:
        admission: lock during the admission of a pod; one pod at a time on the whole node.
    """

    admission: asyncio.Lock

    def admit_pod(self, pod: CachedPod) -> AdmissionRejection | None:
        """Checks the node's rules, devices excepted; None admits the pod."""
        ...

    def allocatable(self) -> Mapping[str, str]:
        """The node's allocatable resources now."""
        ...

    async def read_data(self, plural: str, namespace: str, name: str) -> Mapping[str, str] | None:
        """The data of a ConfigMap or Secret; None if there is none."""
        ...

    async def wait_for_network(self) -> None:
        """Returns once the node has its network."""
        ...


@dataclass(frozen=True, kw_only=True)
class NodeServices:
    """Services of a node for the workers of its pods.

    Attributes:
        client: writes pods as this kubelet.
        clock: the node's time.
        rng: for container ids and jitter.
        events: records events about pods.
        devices: allocates devices.
        claims: prepares ResourceClaims.
        launcher: starts containers, and has the runtime for those that it does not start.
        network: the addresses of the node and its pods.
        node: the node itself.
    """

    client: Client
    clock: Clock
    rng: random.Random
    events: EventRecorder
    devices: DeviceManager
    claims: ClaimManager
    launcher: Launcher
    network: NodeNetwork
    node: WorkerNode
