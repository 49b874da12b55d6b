"""The Node object as kubelet keeps it: registration, capacity, conditions, and the Lease.

Rules, all kubelet's (``pkg/kubelet/kubelet_node_status.go``, ``nodestatus/setters.go``):

* capacity of extended resources that others patched in is kept, and copied to allocatable;
* a resource whose plugin stayed away is set to 0, once; it stays in the Node object until somebody removes it;
* extended resources of an earlier life of the node are set to 0 at registration;
* labels and taints are given once, at registration.

Capacity is published at once after a change, or on a fixed period like the real kubelet's 10 s.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tessera.clock import Clock, rfc3339, rfc3339_micro
from tessera.kube.client import Client
from tessera.kube.errors import AlreadyExists, ApiError, NotFound
from tessera.kube.resources import LEASES, NODES
from tessera.kubelet.registration import extended_resource_name
from tessera.lab.kubelet.context import KubeletOptions

Json = Mapping[str, Any]

#: What kubelet sets on every node of this kind.
ARCHITECTURE = "amd64"
SYSTEM = "linux"

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40

#: Seconds before a write that failed is tried again.
_AGAIN = 1.0


class NodeObject:
    """One node's object in the API.

    Args:
        name: the node's name and hostname.
        client: who writes.
        clock: for times and periods.
        options: see :class:`~tessera.lab.kubelet.context.KubeletOptions`.
        address: the node's internal IP.
        boot_id: changes with every boot.
        devices: capacity and allocatable of device plugins now.
        current: the Node object as last seen, or None.
    """

    def __init__(
        self,
        name: str,
        *,
        client: Client,
        clock: Clock,
        options: KubeletOptions,
        address: str,
        boot_id: str,
        devices: Callable[[], tuple[dict[str, int], dict[str, int]]],
        current: Callable[[], Json | None],
    ) -> None:
        self._name = name
        self._client = client
        self._clock = clock
        self._options = options
        self._address = address
        self.boot_id = boot_id
        self._devices = devices
        self._current = current
        self._ready_since = ""
        self._seen: set[str] = set()
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Capacity may have changed, or somebody patched the object."""
        self._changed.set()

    async def register(self) -> None:
        """Makes the Node object, or takes over the one there is."""
        self._ready_since = rfc3339(self._clock.now())
        labels = {
            "kubernetes.io/hostname": self._name,
            "kubernetes.io/arch": ARCHITECTURE,
            "kubernetes.io/os": SYSTEM,
            "beta.kubernetes.io/arch": ARCHITECTURE,
            "beta.kubernetes.io/os": SYSTEM,
            **self._options.labels,
        }
        spec = {"taints": [dict(taint) for taint in self._options.taints]} if self._options.taints else {}
        node = {"metadata": {"name": self._name, "labels": labels}, "spec": spec, "status": self._status(None)}
        await self._insist(lambda: self._make(node, labels))

    async def run(self) -> None:
        """Keeps the status until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish())
            if self._options.lease_seconds is not None:
                group.create_task(self._renew(self._options.lease_seconds))

    async def booted(self, boot_id: str) -> None:
        """Kubelet is up again after a reboot: it says so, and what the node has now.

        Capacity that others patched in and labels stay: kubelet has its checkpoint, so it does not take the node for a
        new one. The node is not said to have been away, since nobody watches its Lease here.
        """
        self.boot_id = boot_id
        await self._insist(self._back)

    async def _back(self) -> None:
        try:
            node = await self._client.get(NODES.untyped(), self._name)
        except NotFound:
            await self.register()
            return
        wanted = self._status(node)
        lists = {
            name: _difference(node["status"].get(name) or {}, wanted[name]) for name in ("capacity", "allocatable")
        }
        await self._patch({"nodeInfo": wanted["nodeInfo"], **lists})

    # Registration

    async def _make(self, node: dict[str, Any], labels: Mapping[str, str]) -> None:
        try:
            made = await self._client.create(NODES.untyped(), node)
            if not (made.get("status") or {}).get("conditions"):
                await self._patch(node["status"])
        except AlreadyExists:
            old = await self._client.get(NODES.untyped(), self._name)
            await self._client.merge_patch(NODES.untyped(), self._name, {"metadata": {"labels": dict(labels)}})
            stale = dict.fromkeys(_extended(old), "0")
            status = self._status(None)
            status["capacity"] |= stale
            status["allocatable"] |= stale
            await self._patch(status)

    # Status

    async def _publish(self) -> None:
        """Writes capacity and allocatable when they differ from what the API has."""
        while True:
            if self._options.publish_every is not None:
                await self._clock.sleep(self._options.publish_every)
            else:
                await self._changed.wait()
            self._changed.clear()
            await self._insist(self._publish_once)

    async def _publish_once(self) -> None:
        node = self._current()
        if node is None:
            return
        status = node.get("status") or {}
        wanted = self._status(node)
        resources = {name: wanted[name] for name in ("capacity", "allocatable")}
        if any(resources[name] != (status.get(name) or {}) for name in resources):
            await self._patch({name: _difference(status.get(name) or {}, resources[name]) for name in resources})
        if (status.get("nodeInfo") or {}).get("bootID") != self.boot_id:
            await self._patch({"nodeInfo": wanted["nodeInfo"]})

    def _status(self, node: Json | None) -> dict[str, Any]:
        capacity, allocatable = self._resources(node)
        return {
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": self._conditions(),
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": self._name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": self._name,
                "systemUUID": self._name,
                "bootID": self.boot_id,
                "kernelVersion": "6.8.0-simulated",
                "osImage": "Tessera lab (simulated)",
                "containerRuntimeVersion": "simulated://1.0",
                "kubeletVersion": "v1.32.0",
                "kubeProxyVersion": "",
                "operatingSystem": SYSTEM,
                "architecture": ARCHITECTURE,
            },
        }

    def _resources(self, node: Json | None) -> tuple[dict[str, str], dict[str, str]]:
        capacity = {
            "cpu": self._options.cpu,
            "memory": self._options.memory,
            "ephemeral-storage": "1Ti",
            "pods": str(self._options.max_pods),
        }
        own, usable = self._devices()
        removed = self._seen - own.keys()
        self._seen |= own.keys()
        published = _extended(node)
        self._seen -= {name for name in removed if published.get(name) == "0"}
        capacity |= {name: value for name, value in published.items() if name not in own}
        capacity |= dict.fromkeys(removed, "0")
        allocatable = dict(capacity)
        capacity |= {name: str(count) for name, count in own.items()}
        allocatable |= {name: str(count) for name, count in usable.items()}
        return capacity, allocatable

    def _conditions(self) -> list[dict[str, Any]]:
        pressures = [
            ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ]
        ready = ("Ready", "True", "KubeletReady", "kubelet is posting ready status (simulated)")
        now = rfc3339(self._clock.now())
        return [
            {
                "type": kind,
                "status": status,
                "lastHeartbeatTime": now,
                "lastTransitionTime": self._ready_since,
                "reason": reason,
                "message": message,
            }
            for kind, status, reason, message in [(kind, "False", why, text) for kind, why, text in pressures] + [ready]
        ]

    async def _patch(self, status: Json) -> None:
        await self._client.merge_patch(NODES.untyped(), self._name, {"status": status}, subresource="status")

    # Lease

    async def _renew(self, period: float) -> None:
        while True:
            await self._insist(self._renew_once)
            await self._clock.sleep(period)

    async def _renew_once(self) -> None:
        now = rfc3339_micro(self._clock.now())
        spec = {"holderIdentity": self._name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        try:
            await self._client.merge_patch(LEASES.untyped(), self._name, {"spec": spec}, LEASE_NAMESPACE)
        except NotFound:
            lease = {"metadata": {"name": self._name, "namespace": LEASE_NAMESPACE}, "spec": spec}
            await self._client.create(LEASES.untyped(), lease, LEASE_NAMESPACE)

    async def _insist(self, write: Callable[[], Any]) -> None:
        """Repeats a write until the API takes it; kubelet never gives its node up."""
        while True:
            try:
                await write()
            except (ApiError, ConnectionError, TimeoutError):
                await self._clock.sleep(_AGAIN)
            else:
                return


def _extended(node: Json | None) -> dict[str, str]:
    """The extended resources in the object's capacity."""
    capacity = ((node or {}).get("status") or {}).get("capacity") or {}
    return {name: value for name, value in capacity.items() if extended_resource_name(name)}


def _difference(old: Json, new: Json) -> dict[str, Any]:
    """The merge patch from one resource list to the other."""
    gone = {name: None for name in old if name not in new}
    return {name: value for name, value in new.items() if old.get(name) != value} | gone
