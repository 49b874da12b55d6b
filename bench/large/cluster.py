"""An API server with the objects of a large cluster, put into its store at once. There is no kubelet and no agent."""

import asyncio
from typing import Any

import msgspec
from bench.watch import pod as make_pod

from tessera.agent.inventory.sliceable_gpus import placements
from tessera.api.names import GATE, HOSTNAME_LABEL, INSTASLICE_NAMESPACE, MIG_CONFIG_LABEL, resource_of
from tessera.clock import SystemClock
from tessera.doctor.manifests import install_manifests
from tessera.kube.client import Client
from tessera.kube.resources import NAMESPACES, PODS
from tessera.mig.models import model_by_short_name
from tessera_lab.apiserver.interfaces import GroupResource, UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.apiserver.storage.store import Change
from tessera_lab.installation.install import apply_manifests

MODEL, CARDS = "A100-40GB", 8
PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "1g.10gb")
#: An administrator's token.
TOKEN = "administrator"
_PODS, _NODES = GroupResource("", "pods"), GroupResource("", "nodes")
_OBJECTS = GroupResource("inference.redhat.com", "instaslices")
_DATE = "2026-11-20T10:11:12Z"


class Cluster:
    """The API server with the objects."""

    def __init__(self, nodes: int, pods: int) -> None:
        user = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))
        self.server = ApiServer(SystemClock(), tokens={TOKEN: user})
        self._client = Client(InProcessTransport(self.server, user), field_manager="bench", clock=SystemClock())
        self._store = self.server.core.store
        self._nodes, self._pods = nodes, pods
        self.gated = pods
        self.opened = asyncio.Event()
        self._store.listen(_PODS, self._pod_changed)

    async def fill(self) -> None:
        """Puts all objects into the store."""
        kinds = {"CustomResourceDefinition", "Namespace"}
        await apply_manifests(self._client, [each for each in install_manifests() if each["kind"] in kinds])
        for number in range(self._nodes):
            self._store.put(_NODES, _node(number), None)
            self._store.put(_OBJECTS, _instaslice(number), None)
        for number in range(20):
            await self._client.create(NAMESPACES.as_dicts(), {"metadata": {"name": f"team-{number:02d}"}})
        first = _pod(0)
        await self._client.create(PODS.as_dicts(), first, namespace=first["metadata"]["namespace"])
        # the server completes the spec of the first pod, and all others are like it
        stored = self._store.select(_PODS, None)[0]
        for number in range(1, self._pods):
            pod, spec = _pod(number), msgspec.json.decode(msgspec.json.encode(stored.obj["spec"]))
            spec["containers"][0]["resources"] = pod["spec"]["containers"][0]["resources"]
            self._store.put(_PODS, pod | {"spec": spec}, None)

    def bind(self) -> None:
        """Every pod runs on the node to which the controller has pinned it."""
        for stored in self._store.select(_PODS, None):
            pod = msgspec.json.decode(msgspec.json.encode(stored.obj))
            pod["spec"]["nodeName"] = pod["spec"]["nodeSelector"][HOSTNAME_LABEL]
            pod["status"] |= {"phase": "Running"}
            self._store.put(_PODS, pod, stored)

    def _pod_changed(self, change: Change) -> None:
        if change.old is not None and change.old.obj["spec"].get("schedulingGates"):
            self.gated -= not change.new.obj["spec"].get("schedulingGates")
            if not self.gated:
                self.opened.set()


def _node(number: int) -> dict[str, Any]:
    name = f"node-{number:05d}"
    rows = model_by_short_name(MODEL).geometry.profiles
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "110"}
    amounts |= {resource_of(row.name): str(row.max_count * CARDS) for row in rows}
    labels = {HOSTNAME_LABEL: name, MIG_CONFIG_LABEL: "dynamic", "zone": f"zone-{number % 3}"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"node-{number}", "labels": labels, "creationTimestamp": _DATE},
        "spec": {},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _instaslice(number: int) -> dict[str, Any]:
    name, model = f"node-{number:05d}", model_by_short_name(MODEL)
    gpus = [
        {"gpuUuid": f"GPU-{number:05d}-{card}", "gpuName": model.product_name, "gpuMemory": "40960Mi"}
        for card in range(CARDS)
    ]
    table = msgspec.to_builtins(placements(model.geometry))
    return {
        "apiVersion": "inference.redhat.com/v1alpha1",
        "kind": "Instaslice",
        "metadata": {
            "name": name,
            "namespace": INSTASLICE_NAMESPACE,
            "uid": f"object-{number}",
            "creationTimestamp": _DATE,
        },
        "spec": {},
        "status": {"nodeResources": {"nodeGpus": gpus, "migPlacement": table, "bootId": "boot"}},
    }


def _pod(number: int) -> dict[str, Any]:
    """A pod of 9 KB behind the gate."""
    pod = make_pod(number, 1)
    limits = {resource_of(PROFILES[number % len(PROFILES)]): "1", "cpu": "4", "memory": "16Gi"}
    pod["spec"] |= {"schedulingGates": [{"name": GATE}], "nodeSelector": {}}
    del pod["spec"]["nodeName"], pod["spec"]["serviceAccountName"], pod["metadata"]["resourceVersion"]
    pod["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits}
    pod["status"] = {"phase": "Pending"}
    return pod
