"""Services of a node for the workers of its pods, the node as its workers see it, and its addresses."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera_lab.kubelet.claims.claim_manager import ClaimManager
from tessera_lab.kubelet.containers.launcher import Launcher
from tessera_lab.kubelet.devices.device_manager import DeviceManager
from tessera_lab.kubelet.pods.admission import AdmissionRejection
from tessera_lab.scheduler.state.node_cache import CachedPod


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
