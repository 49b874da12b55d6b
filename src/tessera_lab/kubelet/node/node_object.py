"""The Node object as kubelet keeps it: registration, capacity, conditions, and the Lease.

Rules, all kubelet's (``pkg/kubelet/kubelet_node_status.go``, ``nodestatus/setters.go``):

* capacity of extended resources that others patched in is kept, and copied to allocatable;
* kubelet sets a resource whose plugin stayed away to 0, once; it stays in the Node object until somebody removes it;
* at registration kubelet sets extended resources of an older Node object to 0;
* kubelet sets labels and taints once, at registration;
* a node without a network is not Ready. It registers with the taint that the admission plugin TaintNodesByCondition
  gives such a node; the node lifecycle controller removes it (:mod:`tessera_lab.workloads.nodes`).

Kubelet publishes capacity at once after a change, or on a fixed period like the real kubelet's 10 s. What others made
of its own amounts it writes over after that period in either case.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tessera.api.names import SIMULATED_RUNTIME
from tessera.clock import Clock, rfc3339, rfc3339_micro, until_set
from tessera.kube.client import Client
from tessera.kube.errors import AlreadyExists, ApiError, NotFound
from tessera.kube.resources import LEASES, NODES
from tessera_lab.kubelet.context import KubeletOptions
from tessera_lab.kubelet.device_plugins.plugin_client import is_extended_resource_name

Json = Mapping[str, Any]

#: Labels that kubelet sets on every node.
SYSTEM = "linux"

#: Taint of a node that is not Ready.
NOT_READY_TAINT = "node.kubernetes.io/not-ready"
_NO_NETWORK = (
    "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin "
    "returns error: cni plugin not initialized (simulated)"
)

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40

#: Seconds between two node status of kubelet (``nodeStatusUpdateFrequency``).
STATUS_PERIOD = 10.0
#: Seconds before a write that failed is tried again.
_AGAIN = 1.0


class DescribedNode(Protocol):
    """The node that a Node object describes."""

    def device_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the present capacity and allocatable of device plugins, by resource."""
        ...

    def current_object(self) -> Json | None:
        """Returns the Node object as last read, or None."""
        ...

    def images(self) -> list[dict[str, Any]]:
        """Returns the images on the node, as its status lists them."""
        ...


class KubeletNodeObject:
    """One node's object in the API.

    Args:
        name: the node's name and hostname.
        client: writes to the API server.
        clock: for times and periods.
        waits: the clock for waits that virtual time may skip.
        options: see :class:`~tessera_lab.kubelet.context.KubeletOptions`.
        boot_id: changes with every boot.
        node: the node that the object describes.
    """

    def __init__(
        self,
        name: str,
        *,
        client: Client,
        clock: Clock,
        waits: Clock,
        options: KubeletOptions,
        boot_id: str,
        node: DescribedNode,
    ) -> None:
        self._name = name
        self._client = client
        self._clock = clock
        self._waits = waits
        self._options = options
        self._kernel = options.kernel
        self._network = asyncio.Event()
        if not options.network_seconds:
            self._network.set()
        self.boot_id = boot_id
        self._node = node
        self._ready_since = ""
        self._seen: set[str] = set()
        self._changed = asyncio.Event()
        #: Allocatable amounts of device plugins as last written.
        self._written: dict[str, int] = {}
        #: When others were first seen to have lowered one of them; None while none is lower.
        self._lowered_since: float | None = None

    def notify(self) -> None:
        """Wakes the writer: capacity may have changed, or somebody patched the object."""
        self._changed.set()

    async def register(self) -> None:
        """Creates the Node object, or takes over the existing one."""
        self._registered = self._ready_since = rfc3339(self._clock.now())
        labels = {
            "kubernetes.io/hostname": self._name,
            "kubernetes.io/arch": self._options.architecture,
            "kubernetes.io/os": SYSTEM,
            "beta.kubernetes.io/arch": self._options.architecture,
            "beta.kubernetes.io/os": SYSTEM,
            **self._options.labels,
        }
        metadata = {"name": self._name, "labels": labels, "annotations": dict(self._options.annotations)}
        node = {"metadata": metadata, "spec": self._spec(), "status": self._status(None)}
        await self._retry(lambda: self._make(node, labels))

    async def run(self) -> None:
        """Keeps the status up to date until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish())
            self._changed.set()
            if not self._network.is_set():
                group.create_task(self._join_network())
            if self._options.lease_seconds is not None:
                group.create_task(self._renew(self._options.lease_seconds))

    async def wait_for_network(self) -> None:
        """Returns when the node has a network."""
        await self._network.wait()

    async def report_boot(self, boot_id: str, kernel: str) -> None:
        """Writes boot id, kernel and present capacity after a reboot.

        Labels, and capacity that others patched in, stay: kubelet has its checkpoint, so it knows that the node is not
        new. The node lifecycle controller, which watches the Lease, decides if the node counts as lost meanwhile.
        """
        self.boot_id, self._kernel = boot_id, kernel
        if self._options.network_seconds:
            self._network.clear()
            self._ready_since = rfc3339(self._clock.now())
        await self._retry(self._recover)

    async def _recover(self) -> None:
        try:
            node = await self._client.get(NODES.as_dicts(), self._name)
        except NotFound:
            await self.register()
            return
        desired = self._status(node)
        lists = {
            name: _difference(node["status"].get(name) or {}, desired[name]) for name in ("capacity", "allocatable")
        }
        await self._patch({"nodeInfo": desired["nodeInfo"], **lists})
        if not self._network.is_set():
            await self._patch_conditions()

    async def _join_network(self) -> None:
        await self._waits.sleep(self._options.network_seconds)
        self._network.set()
        self._ready_since = rfc3339(self._clock.now())
        await self._retry(self._patch_conditions)

    # Registration

    def _spec(self) -> dict[str, Any]:
        taints = [dict(taint) for taint in self._options.taints]
        if not self._network.is_set():
            taints.append({"key": NOT_READY_TAINT, "effect": "NoSchedule"})
        fields = {"taints": taints, "providerID": self._options.provider_id}
        return {name: value for name, value in fields.items() if value}

    async def _make(self, node: dict[str, Any], labels: Mapping[str, str]) -> None:
        try:
            created = await self._client.create(NODES.as_dicts(), node)
            if not (created.get("status") or {}).get("conditions"):
                await self._patch(node["status"])
        except AlreadyExists:
            old = await self._client.get(NODES.as_dicts(), self._name)
            await self._client.merge_patch(NODES.as_dicts(), self._name, {"metadata": {"labels": dict(labels)}})
            stale = dict.fromkeys(_extended_resources(old), "0")
            status = self._status(None)
            status["capacity"] |= stale
            status["allocatable"] |= stale
            await self._patch(status)

    # Status

    async def _publish(self) -> None:
        """Writes capacity and allocatable if they differ from the Node object's."""
        while True:
            if self._options.publish_every is not None:
                await self._clock.sleep(self._options.publish_every)
            else:
                await until_set(self._changed, None if self._lowered_since is None else STATUS_PERIOD)
            self._changed.clear()
            await self._retry(self._publish_once)

    async def _publish_once(self) -> None:
        node = self._node.current_object()
        if node is None:
            return
        status = node.get("status") or {}
        desired = self._status(node)
        resources = {name: desired[name] for name in ("capacity", "allocatable")}
        if self._options.publish_every is None:
            resources["allocatable"] |= self._lowered_amounts(status.get("allocatable") or {})
        if any(resources[name] != (status.get(name) or {}) for name in resources):
            await self._patch({name: _difference(status.get(name) or {}, resources[name]) for name in resources})
        images = self._node.images()
        if images != (status.get("images") or []):
            await self._patch({"images": images})
        said = {each["type"]: each["status"] for each in status.get("conditions") or ()}
        if said.get("Ready") == "Unknown":  # nobody had heard of this node for a while
            self._ready_since = self._registered = rfc3339(self._clock.now())
            await self._patch_conditions()
        if (status.get("nodeInfo") or {}).get("bootID") != self.boot_id:
            await self._patch({"nodeInfo": desired["nodeInfo"]})

    def _lowered_amounts(self, shown: Mapping[str, str]) -> dict[str, str]:
        """Returns amounts that others have lowered since kubelet wrote them, and that it does not yet write over."""
        _, usable = self._node.device_counts()
        lowered = {
            name: shown[name]
            for name, count in usable.items()
            if count == self._written.get(name) and name in shown and int(shown[name]) < count
        }
        now = self._clock.monotonic()
        if not lowered:
            self._lowered_since = None
        elif self._lowered_since is None:
            self._lowered_since = now
        elif now - self._lowered_since >= STATUS_PERIOD:
            lowered, self._lowered_since = {}, None
        self._written = dict(usable)
        return lowered

    def _status(self, node: Json | None) -> dict[str, Any]:
        capacity, allocatable = self._resources(node)
        return {
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": self._conditions(),
            "addresses": [
                {"type": "InternalIP", "address": self._options.address},
                {"type": "Hostname", "address": self._name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": self._name,
                "systemUUID": self._name,
                "bootID": self.boot_id,
                "kernelVersion": self._kernel,
                "osImage": self._options.os_image,
                "containerRuntimeVersion": f"{SIMULATED_RUNTIME}1.0",
                "kubeletVersion": f"v{self._options.release}",
                "kubeProxyVersion": "",
                "operatingSystem": SYSTEM,
                "architecture": self._options.architecture,
            },
        }

    def _resources(self, node: Json | None) -> tuple[dict[str, str], dict[str, str]]:
        capacity = {
            "cpu": self._options.cpu,
            "memory": self._options.memory,
            "ephemeral-storage": self._options.disk,
            "pods": str(self._options.max_pods),
        }
        own, usable = self._node.device_counts()
        removed = self._seen - own.keys()
        self._seen |= own.keys()
        published = _extended_resources(node)
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
        if not self._network.is_set():
            ready = ("Ready", "False", "KubeletNotReady", _NO_NETWORK)
        now = rfc3339(self._clock.now())
        return [
            {
                "type": kind,
                "status": status,
                "lastHeartbeatTime": now,
                "lastTransitionTime": self._ready_since if kind == "Ready" else self._registered,
                "reason": reason,
                "message": message,
            }
            for kind, status, reason, message in [(kind, "False", why, text) for kind, why, text in pressures] + [ready]
        ]

    async def _patch(self, status: Json) -> None:
        await self._client.merge_patch(NODES.as_dicts(), self._name, {"status": status}, subresource="status")

    async def _patch_conditions(self) -> None:
        """Writes kubelet's own conditions beside those of others, as kubelet does: by a strategic merge patch."""
        path = NODES.path(name=self._name, subresource="status")
        patch = {"status": {"conditions": self._conditions()}}
        await self._client.request("PATCH", path, body=patch, content_type="application/strategic-merge-patch+json")

    # Lease

    async def _renew(self, period: float) -> None:
        while True:
            await self._retry(self._renew_once)
            await self._clock.sleep(period)

    async def _renew_once(self) -> None:
        now = rfc3339_micro(self._clock.now())
        spec = {"holderIdentity": self._name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        try:
            await self._client.merge_patch(LEASES.as_dicts(), self._name, {"spec": spec}, LEASE_NAMESPACE)
        except NotFound:
            lease = {"metadata": {"name": self._name, "namespace": LEASE_NAMESPACE}, "spec": spec}
            await self._client.create(LEASES.as_dicts(), lease, LEASE_NAMESPACE)

    async def _retry(self, write: Callable[[], Any]) -> None:
        """Repeats a write until the API server accepts it."""
        while True:
            try:
                await write()
            except (ApiError, ConnectionError, TimeoutError):
                await self._clock.sleep(_AGAIN)
            else:
                return


def _extended_resources(node: Json | None) -> dict[str, str]:
    """The extended resources in the object's capacity."""
    capacity = ((node or {}).get("status") or {}).get("capacity") or {}
    return {name: value for name, value in capacity.items() if is_extended_resource_name(name)}


def _difference(old: Json, new: Json) -> dict[str, Any]:
    """Returns the merge patch from one resource list to the other."""
    removed = {name: None for name in old if name not in new}
    return {name: value for name, value in new.items() if old.get(name) != value} | removed
