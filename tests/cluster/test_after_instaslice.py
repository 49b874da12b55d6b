"""After InstaSlice, the dynamic accelerator slicer: its objects with their allocations are taken over as they are.

InstaSlice itself does not run here: its definition, its objects and its pods are there, as v0.0.2 leaves them when its
Deployment and its DaemonSet are deleted.
"""

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.virtual_lab import COMMANDS, VirtualLab

from tessera.api.instaslice import INSTASLICES
from tessera.clock import LoopClock
from tessera.explain.card_map import cards_of
from tessera.kube.resources import CRDS, NAMESPACES, NODES, PODS
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.installation.install import build_entrypoint, install_tessera
from tessera_lab.simulation.virtual_time import run_virtual

NODE = "node-1"
RESOURCE = "instaslice.redhat.com/mig-3g.20gb"
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
#: The definition without the bounds that Tessera's has.
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "instaslices.inference.redhat.com"},
    "spec": {
        "group": "inference.redhat.com",
        "scope": "Namespaced",
        "names": {
            "kind": "Instaslice",
            "listKind": "InstasliceList",
            "plural": "instaslices",
            "singular": "instaslice",
        },
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": OPEN, "status": OPEN}}},
            }
        ],
    },
}
Scenario = Callable[["SlicedLab"], Awaitable[None]]


class SlicedLab(VirtualLab):
    """A lab in which a pod runs on a slice of InstaSlice's.

    Attributes:
        uid: of this pod, ``old``.
        gpu: the card.
    """

    uid = ""
    gpu = ""

    async def bring_definition(self) -> None:
        """Makes the definition and the namespace."""
        await self.client.create(CRDS.as_dicts(), DEFINITION)
        await self.client.create(NAMESPACES, {"metadata": {"name": "instaslice-system"}})
        await self.clock.sleep(1)

    async def bring_slice(self) -> None:
        """Makes the slice, the pod, and the object that names both."""
        machine = self.cluster.nodes[NODE].machine
        assert machine is not None
        (self.gpu,) = machine.uuids()
        machine.set_mig_mode(self.gpu, enabled=True)
        machine.create_gpu_instance(self.gpu, "3g.20gb", 4)
        (made,) = machine.instances(self.gpu)
        machine.create_compute_instance(self.gpu, made.gi_id, 2)
        capacity = {"status": {"capacity": {RESOURCE: "2"}, "allocatable": {RESOURCE: "2"}}}
        await self.client.merge_patch(NODES, NODE, capacity, subresource="status")
        await self.create("old", {RESOURCE: 1}, nodeSelector={"kubernetes.io/hostname": NODE})
        await self.until(lambda: self.phase("old") == "Running", "the pod runs")
        self.uid = (await self.client.get(PODS, "old", "default")).metadata.uid
        await self.client.create(INSTASLICES.as_dicts(), self._object(), "instaslice-system")
        status = {"status": self._status()}
        await self.client.merge_patch(INSTASLICES.as_dicts(), NODE, status, "instaslice-system", subresource="status")

    def _object(self) -> dict[str, Any]:
        reference = {"kind": "Pod", "namespace": "default", "name": "old", "uid": self.uid}
        request = {"profile": "3g.20gb", "resources": {"requests": {"cpu": "100m"}}, "podRef": reference}
        return {"metadata": {"name": NODE}, "spec": {"podAllocationRequests": {self.uid: request}}}

    def _status(self) -> dict[str, Any]:
        result = {
            "allocationStatus": {"allocationStatusController": "ungated", "allocationStatusDaemonset": "created"},
            "configMapResourceIdentifier": "a02ae459-0618-4804-83f9-e5ba36af756f",
            "gpuUUID": self.gpu,
            "migPlacement": {"size": 4, "start": 4},
            "nodename": NODE,
        }
        table = {"3g.20gb": {"placements": [{"size": 4, "start": 0}], "giProfileId": 9, "ciProfileId": 9}}
        return {
            "podAllocationResults": {self.uid: result},
            "nodeResources": {
                "nodeGpus": [{"gpuUuid": self.gpu, "gpuName": "NVIDIA A100-SXM4-40GB", "gpuMemory": "40Gi"}],
                "migPlacement": table,
                "nodeResources": {"cpu": "8", "memory": "64Gi"},
            },
        }

    def tiles(self) -> list[tuple[str, str, str, int]]:
        """The slices that ``tessera map`` draws."""
        drawn = cards_of(list(self.slices.cache.values()))
        found = [tile for node in drawn for card in node.cards for tile in card.tiles]
        return sorted((each.pod, each.state, each.profile, each.start) for each in found)


@pytest.fixture
def after_instaslice(tmp_path: Path) -> Callable[[Scenario], None]:
    """Runs a scenario once Tessera was installed after InstaSlice."""

    def run(scenario: Scenario) -> None:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))

        async def play() -> None:
            cluster = SimulatedCluster(
                parse_nodes("1xA100-40GB"),
                clock=LoopClock(1_800_000_000),
                options=ClusterOptions(cdi=folder),
                entrypoint=build_entrypoint(COMMANDS),
            )
            async with cluster.running():
                lab = SlicedLab(cluster)
                await lab.bring_definition()
                async with lab.watched.running():
                    await lab.until(lambda: lab.nodes.cache.get(NODE), "the node is there")
                    await lab.bring_slice()
                    await install_tessera(cluster.client("install"))
                    await lab.until(lambda: lab.offers(NODE), "the node has joined")
                    await lab.until(lab.trusts_webhook, "the webhook is trusted")
                    await scenario(lab)

        run_virtual(play())

    return run


def test_a_running_pod_keeps_its_slice_and_its_record(after_instaslice: Callable[[Scenario], None]) -> None:
    async def scenario(lab: SlicedLab) -> None:
        hardware = lab.hardware(NODE)
        await lab.clock.sleep(120)
        assert lab.tiles() == [("default/old", "created", "3g.20gb", 4)]
        assert lab.hardware(NODE) == hardware
        assert lab.phase("old") == "Running"
        found = lab.instaslice().status
        assert found.node_resources.foreign == ()
        result = found.pod_allocation_results[lab.uid]
        assert result.config_map_resource_identifier == "a02ae459-0618-4804-83f9-e5ba36af756f"

        await lab.create("new", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("new")
        assert [(pod, start) for pod, _, _, start in lab.tiles()] == [("default/new", 0), ("default/old", 4)]
        await lab.create("large", {"nvidia.com/mig-7g.40gb": 1})
        for name in ("old", "new"):
            await lab.delete(name)
        await lab.running("large")
        assert [pod for pod, *_ in lab.tiles()] == ["default/large"]

    after_instaslice(scenario)
