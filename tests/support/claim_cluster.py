"""The slicer's cluster with ResourceClaims: kube-scheduler, the claim controller and the API server as functions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
from tests.support.device_claims import profile_class, read_geometry
from tests.support.slicer_cluster import CheckedSlicer, SlicerCluster, merge

from tessera.api.names import DEVICE_API_DRA, DEVICE_API_LABEL, MIG_CONFIG_LABEL, NodeName, PodUid
from tessera.claims.controller.claims import Claims
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.slicer import KINDS, Slicer
from tessera.controller.slicing.state.events import RecordObserved, RecordsListed, RetryDue, WriteRefused
from tessera.controller.slicing.state.instructions import Instruction, PatchRecord, Write
from tessera.dra.claims import DeviceClass, ResourceClaim
from tessera.dra.driver_objects import device_classes, plan_slices
from tessera.dra.node_devices import DRIVER, NodeCard, PublishOptions, node_pools
from tessera.dra.resource_slices import ResourceSlice
from tessera.kube.quantity import parse_quantity
from tessera.mig.models import model_by_short_name

Json = dict[str, Any]
#: Holds a claim until nobody uses it.
FINALIZER = "resource.kubernetes.io/delete-protection"


def request(name: str, device_class: str, **more: Any) -> Json:
    """A request for devices of a class."""
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def selecting(expression: str) -> Json:
    """A selector."""
    return {"selectors": [{"cel": {"expression": expression}}]}


class ClaimCluster(SlicerCluster):
    """Nodes whose slices go to claims, and what Kubernetes does with claims.

    Attributes:
        claims: by ``namespace/name``.
        refusing: nodes that take no pod, for a reason that only kube-scheduler knows.
    """

    def __init__(self, reserve_after: float | None = None, *, driver: str = DRIVER, **options: Any) -> None:
        self.driver = driver
        self.claims: dict[str, Json] = {}
        self.slices: dict[str, Json] = {}
        self.classes: list[Json] = [
            *device_classes(driver),
            profile_class(driver, "1g.5gb"),
            profile_class(driver, "3g.20gb"),
        ]
        self.refusing: set[str] = set()
        super().__init__(reserve_after, **options)
        self.tell_claims()

    def make_slicer(self) -> Slicer:
        return CheckedSlicer(
            self.reserve_after,
            preempts=self.preempts,
            moves=self.moves,
            kinds=(*KINDS, partial(Claims, driver=self.driver)),
        )

    def restart(self) -> None:
        super().restart()
        self.tell_claims()

    def tell_claims(self) -> None:
        """Shows all objects of claims, as a list does."""
        for item in self.classes:
            self.slicer.handle(RecordObserved("claims", msgspec.convert(item, DeviceClass)))
        for item in self.slices.values():
            self.slicer.handle(RecordObserved("claims", msgspec.convert(item, ResourceSlice)))
        for key in self.claims:
            self.slicer.handle(RecordObserved("claims", self.read_claim(key)))
        self.slicer.handle(RecordsListed("claims"))

    # What users and nodes do

    def claim_node(
        self,
        name: str,
        cards: str = "A100-40GB",
        count: int = 1,
        *,
        whole: bool = False,
        shares: int = 0,
        kinds: str = "",
        **facts: Any,
    ) -> NodeInfo:
        """A node that gives its slices to claims, or its cards whole or in shares, and publishes them.

        ``kinds`` says it by card: ``w`` for whole, ``s`` for four shares, and ``c`` for cut.
        """
        labels = {MIG_CONFIG_LABEL: "dynamic", "kubernetes.io/hostname": name, DEVICE_API_LABEL: DEVICE_API_DRA}
        offer: Json = {"count": len(kinds) or count, "whole": whole, "shares": shares, "kinds": kinds}
        made = self.node(name, cards, **offer, **{"labels": labels, **facts})
        self.publish(name, cards, **offer)
        return made

    def publish(
        self,
        node: str,
        cards: str = "A100-40GB",
        count: int = 1,
        *,
        whole: bool = False,
        shares: int = 0,
        kinds: str = "",
    ) -> None:
        """The node's agent publishes its devices. Two cards have one PCIe root, and the first three one NUMA node."""
        model = model_by_short_name(cards)
        kinds = kinds or ("w" if whole else "s" if shares else "c") * count
        found = [
            NodeCard(
                uuid=f"GPU-{node}-{index}",
                minor=index,
                index=index,
                product=model.product_name,
                compute_capability=model.compute_capability,
                memory_mib=model.memory_mib,
                pci_bus_id=f"0000:{index:02x}:00.0",
                pcie_root=f"pci0000:{index // 2:02x}",
                numa_node=index // 3,
                whole=kind == "w",
                geometry=read_geometry(model.geometry) if kind == "c" else None,
                shares=(shares or 4) if kind == "s" else None,
                sharing="time-slicing" if kind == "s" else "",
            )
            for index, kind in enumerate(kinds)
        ]
        pools = node_pools(node, found, ("580.95.05", 13000), PublishOptions(driver=self.driver))
        for item in plan_slices(pools, ()).create:
            item["spec"]["nodeName"] = node
            self.slices[item["metadata"]["name"]] = item
            self.slicer.handle(RecordObserved("claims", msgspec.convert(item, ResourceSlice)))

    def withdraw(self, node: str) -> None:
        """The node's devices vanish."""
        for name, item in list(self.slices.items()):
            if item["spec"]["nodeName"] == node:
                del self.slices[name]
                self.slicer.handle(RecordObserved("claims", msgspec.convert(item, ResourceSlice), deleted=True))

    def claim(self, name: str, *requests: Json, namespace: str = "default", **devices: Any) -> str:
        """A claim; returns its key."""
        key = f"{namespace}/{name}"
        meta = {"name": name, "namespace": namespace, "uid": f"uid-of-claim-{key}"}
        self.claims[key] = {"metadata": meta, "spec": {"devices": {"requests": list(requests), **devices}}}
        self._show(key)
        return key

    def template_claim(self, name: str, pod: str, *requests: Json, **devices: Any) -> str:
        """The claim of a pod's template, which the claim controller has made; returns its key."""
        key = self.claim(name, *requests, **devices)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"uid-{pod}", "controller": True}
        self.patch_claim(key, {"metadata": {"ownerReferences": [owner]}})
        return key

    def drop_claim(self, key: str) -> None:
        """A claim is gone."""
        item = self.read_claim(key)
        del self.claims[key]
        self.slicer.handle(RecordObserved("claims", item, deleted=True))

    def user(self, name: str, *claims: str, **facts: Any) -> PodInfo:
        """A pod without a gate that uses claims."""
        default: Json = {"gates": (), "device_claims": claims}
        return self.pod(name, **{**default, **facts})

    # Kubernetes

    def read_claim(self, key: str) -> ResourceClaim:
        """A claim as a client sees it."""
        return msgspec.convert(self.claims[key], ResourceClaim)

    def _show(self, key: str) -> None:
        self.version += 1
        self.claims[key]["metadata"]["resourceVersion"] = str(self.version)
        self.slicer.handle(RecordObserved("claims", self.read_claim(key)))

    def patch_claim(self, key: str, patch: Mapping[str, Any]) -> None:
        """A merge patch of a claim."""
        self.claims[key] = merge(self.claims[key], patch)
        self._show(key)

    def answer(self, instruction: Instruction) -> None:
        if isinstance(instruction, PatchRecord):
            key = f"{instruction.namespace}/{instruction.name}"
            stored = self.claims.get(key)
            if stored is None or stored["metadata"]["resourceVersion"] != instruction.version:
                self.slicer.handle(WriteRefused(instruction, "the object has been modified"))
                self.slicer.handle(RetryDue(instruction))
                return
            self._check(stored, instruction)
        super().answer(instruction)

    def _check(self, stored: Json, write: PatchRecord) -> None:
        """What a real server, or the world, would not forgive."""
        before, after = self.allocation(stored), write.patch.get("status", {}).get("allocation", {})
        if write.subresource is None:
            assert write.patch.keys() == {"metadata"}, f"a write of the object changes more: {write.patch}"
        elif after is None:
            assert not stored["status"].get("reservedFor"), f"{write.name} is taken from a pod that has it"
        else:
            assert not before, f"the allocation of {write.name} is immutable"
            of_pod = "ownerReferences" in stored["metadata"]
            assert of_pod or FINALIZER in stored["metadata"]["finalizers"]
            assert after["allocationTimestamp"]
            results = [each for key in self.claims for each in self._results(key)] + after["devices"]["results"]
            given = Counter((each["pool"], each["device"], each.get("shareID", "")) for each in results)
            assert not [each for each, count in given.items() if count > 1], f"{given} has a device twice"
            self._check_shares(results)

    def _check_shares(self, results: Sequence[Json]) -> None:
        """No card has more shares or memory taken than it has: what the server's allocator would count."""
        taken: dict[tuple[str, str, str], Decimal] = {}
        for each in results:
            for name, amount in each.get("consumedCapacity", {}).items():
                key = (each["pool"], each["device"], name)
                taken[key] = taken.get(key, Decimal(0)) + parse_quantity(amount)
        has = {
            (item["spec"]["pool"]["name"], device["name"], name): amount["value"]
            for item in self.slices.values()
            for device in item["spec"].get("devices", ())
            for name, amount in device["capacity"].items()
        }
        for key, amount in taken.items():
            assert key not in has or amount <= parse_quantity(has[key]), f"{key}: {amount} of {has[key]} are taken"

    def apply(self, write: Write) -> None:
        if isinstance(write, PatchRecord):
            self.writes.append(write)
            self.patch_claim(f"{write.namespace}/{write.name}", write.patch)
        else:
            super().apply(write)

    @staticmethod
    def allocation(claim: Json) -> Json:
        """A claim's allocation; empty if it has none."""
        return claim.get("status", {}).get("allocation") or {}

    def devices(self, key: str) -> list[tuple[str, str]]:
        """Pool and name of a claim's devices."""
        return [(each["pool"], each["device"]) for each in self._results(key)]

    def _results(self, key: str) -> list[Json]:
        found = self.allocation(self.claims[key])
        results: list[Json] = found["devices"]["results"] if found else []
        return results

    def node_of(self, key: str) -> str:
        """The node of a claim's allocation; empty if it has none."""
        found = self.read_claim(key).status.allocation
        return "" if found is None else found.node

    def schedule(self) -> bool:
        """kube-scheduler looks at all pods once; True if it did something."""
        found = [self._schedule(pod) for pod in list(self.pods.values()) if pod.device_claims]
        return any(found)

    def _schedule(self, pod: PodInfo) -> bool:
        keys = [key for key in pod.device_claims if key in self.claims]
        if pod.node or pod.gates or pod.terminating or len(keys) < len(pod.device_claims):
            return False
        nodes = {self.node_of(key) for key in keys}
        if "" in nodes:
            return False
        node = min(nodes)
        facts = self.nodes.get(NodeName(node))
        if len(nodes) > 1 or node in self.refusing or facts is None or facts.cordoned:
            free = [key for key in keys if not self.claims[key]["status"].get("reservedFor")]
            for key in free[:1]:
                self.patch_claim(key, {"status": {"allocation": None}})
            return bool(free)
        for key in keys:
            users = self.claims[key]["status"].get("reservedFor", [])
            user = {"resource": "pods", "name": pod.name, "uid": pod.uid}
            self.patch_claim(key, {"status": {"reservedFor": [*users, user]}})
        self.put(replace(pod, node=NodeName(node)))
        return True

    def release(self) -> bool:
        """The claim controller forgets pods that have ended, and clears what nobody uses; True if it did something."""
        changed = False
        for key, claim in list(self.claims.items()):
            users: Sequence[Json] = claim.get("status", {}).get("reservedFor", [])
            left = [each for each in users if not self._has_ended(PodUid(each["uid"]))]
            freed = not left and FINALIZER in (claim["metadata"].get("finalizers") or ())
            if len(left) < len(users):
                self.patch_claim(key, {"status": {"reservedFor": left, **({"allocation": None} if freed else {})}})
                changed = True
            if not left and self._is_over(claim["metadata"]):
                self.drop_claim(key)
                changed = True
        return changed

    def _is_over(self, metadata: Json) -> bool:
        """True for a claim that goes once no pod has it: it is being deleted, or its template's pod is done."""
        owners = [PodUid(each["uid"]) for each in metadata.get("ownerReferences", ())]
        ends = "deletionTimestamp" in metadata or any(map(self._has_ended, owners))
        return ends and set(metadata.get("finalizers") or ()) <= {FINALIZER}

    def delete_claim(self, key: str) -> None:
        """A user deletes a claim; the finalizer holds it."""
        if FINALIZER in (self.claims[key]["metadata"].get("finalizers") or ()):
            self.patch_claim(key, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        else:
            self.drop_claim(key)

    def _has_ended(self, uid: PodUid) -> bool:
        pod = self.pods.get(uid)
        return pod is None or pod.finished

    def settle(self) -> None:
        for _ in range(100):
            super().settle()
            if not self.schedule() and not self.release():
                return
        raise AssertionError("the cluster never comes to rest")
