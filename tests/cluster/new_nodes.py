"""A cluster to which nodes come while it runs: with a registry of driver images, the real controller and agents."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.support.virtual_lab import COMMANDS, VirtualLab

from tessera.clock import LoopClock
from tessera.explain.explanation import parse_query
from tessera.explain.query import explain
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.errors import NotFound
from tessera.kube.resources import CONFIGMAPS
from tessera.provisioning.history import RECORDS_KEY, decode_record
from tessera.provisioning.milestones import PROVISIONING_ANNOTATION, Milestone, ProvisioningRecord
from tessera.provisioning.startup_deadline import STARTUP_TAINT
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import LabNodeSpec
from tessera_lab.drivers.driver_catalogue import build_catalogue, builder_image, driver_image
from tessera_lab.installation.install import build_entrypoint, install_tessera
from tessera_lab.kubelet.images.catalogue import ImageCatalogue
from tessera_lab.simulation.cost_model import CostModel

COSTS = CostModel()
#: Kernels: of the first there is a precompiled driver.
K1, K2, K3 = "5.15.0-69-generic", "5.15.0-70-generic", "5.15.0-71-generic"
REPOSITORY, VERSION = "nvcr.io/nvidia/driver", "525.125.06"
GPU = {"nvidia.com/gpu": 1}
TAINT = ({"key": STARTUP_TAINT, "effect": "NoSchedule"},)
GROUP = {"eks.amazonaws.com/nodegroup": "gpus"}
#: The kind by which Cluster Autoscaler can be asked for nodes, without its rules for values.
REQUESTS_CRD = {
    "metadata": {"name": "provisioningrequests.autoscaling.x-k8s.io"},
    "spec": {
        "group": "autoscaling.x-k8s.io",
        "scope": "Namespaced",
        "names": {
            "kind": "ProvisioningRequest",
            "listKind": "ProvisioningRequestList",
            "plural": "provisioningrequests",
            "singular": "provisioningrequest",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            name: {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                            for name in ("spec", "status")
                        },
                    }
                },
            }
        ],
    },
}


def machine(name: str, kernel: str = K1, cards: str = "T4") -> LabNodeSpec:
    return LabNodeSpec(name=name, cards=(cards,), kernel=kernel, os_image="Ubuntu 22.04.4 LTS", architecture="amd64")


class Nodes(VirtualLab):
    """A cluster to which nodes come while it runs.

    Attributes:
        registries: what they hold.
    """

    def __init__(self, cluster: SimulatedCluster, registries: ImageCatalogue) -> None:
        super().__init__(cluster)
        self.registries = registries

    def add(self, name: str, kernel: str = K1, cards: str = "T4", **more: Any) -> None:
        self.cluster.add_node(machine(name, kernel, cards), labels=GROUP | more.pop("labels", {}), taints=TAINT, **more)

    async def policy(self, version: str = VERSION, **annotations: str) -> None:
        driver = {"usePrecompiled": True, "repository": "nvcr.io/nvidia", "image": "driver", "version": version}
        policy = {"metadata": {"annotations": annotations}, "spec": {"driver": driver}}
        await self.client.apply(CLUSTER_POLICIES, "cluster-policy", policy)

    def taints(self, name: str) -> list[str]:
        seen = self.nodes.cache.get(name)
        return [each.key for each in seen.spec.taints] if seen is not None else ["unseen"]

    def record(self, name: str) -> ProvisioningRecord | None:
        seen = self.nodes.cache.get(name)
        text = seen.metadata.annotations.get(PROVISIONING_ANNOTATION) if seen is not None else None
        return decode_record(text) if text else None

    def done(self, name: str, milestone: Milestone) -> bool:
        found = self.record(name)
        return found is not None and milestone in found.at

    async def kept(self) -> dict[str, ProvisioningRecord]:
        """The book, by node."""
        try:
            found = await self.client.get(CONFIGMAPS, "provisioning-records", "tessera-system")
        except NotFound:
            return {}
        return {each.node: each for each in map(decode_record, found.data[RECORDS_KEY].splitlines())}

    async def why(self, name: str) -> Any:
        return (await explain(self.client, self.clock, parse_query(f"node/{name}"), "default")).answers[0]


Scenario = Callable[[Nodes], Awaitable[None]]


async def play(
    scenario: Scenario, folder: Path, *, drivers: bool = True, costs: CostModel = COSTS, **options: Any
) -> None:
    """Runs a scenario in a cluster that begins with one node without cards."""
    images = {
        f"{REPOSITORY}:{VERSION}-{K1}-ubuntu22.04": driver_image(VERSION, costs, kernel=K1),
        f"{REPOSITORY}:{VERSION}-ubuntu22.04": builder_image(VERSION, costs),
    }
    registries = build_catalogue(costs, images)
    given: dict[str, Any] = {"catalogue": registries, "drivers": True} if drivers else {}
    cluster = SimulatedCluster(
        [LabNodeSpec(name="plain", cards=())],
        clock=LoopClock(1_800_000_000),
        options=ClusterOptions(cdi=folder, mig_config="", **given, **options),
        entrypoint=build_entrypoint(COMMANDS),
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cluster.running())
        await install_tessera(cluster.client("install"))
        lab = Nodes(cluster, registries)
        await stack.enter_async_context(lab.watched.running())
        await lab.clock.sleep(60)
        await scenario(lab)
