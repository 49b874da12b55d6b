"""A fleet in a lab whose nodes have come up with a driver: what it asks for, how its nodes stand, what it waits for."""

import random
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tests.support.virtual_lab import COMMANDS, VirtualLab, manifest

from tessera.api.nodes.node_marks import UPGRADE_STATE_LABEL
from tessera.clock import LoopClock
from tessera.driver.driver_sets import APP_LABEL
from tessera.driver.node_facts import RECORD_ANNOTATION, UpgradeRecord, parse_upgrade_record
from tessera.driver.rollout.node_view import PULL_APP
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.informer import Informer, InformerGroup
from tessera.kube.resources import PODS, REPLICASETS, Node
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.drivers.driver_catalogue import build_catalogue, driver_image
from tessera_lab.drivers.driver_containers import broken_driver
from tessera_lab.installation.install import build_entrypoint, install_tessera
from tessera_lab.kubelet.images.catalogue import SimulatedImage
from tessera_lab.simulation.cost_model import CostModel
from tessera_lab.simulation.virtual_time import run_virtual

KERNEL, SECOND_KERNEL = "5.15.0-69-generic", "6.8.0-31-generic"
COSTS = CostModel()
OLD, NEW, BAD = "525.60.13", "525.125.06", "525.125.07"
#: Simulated seconds for a whole fleet.
TIMEOUT = 14_400.0


def image(version: str, kernel: str = KERNEL) -> str:
    return f"registry.local/nvidia/driver:{version}-{kernel}-ubuntu22.04"


IMAGES = {
    image(OLD): driver_image(OLD, COSTS, kernel=KERNEL),
    image(NEW): driver_image(NEW, COSTS, kernel=KERNEL),
    image(OLD, SECOND_KERNEL): driver_image(OLD, COSTS, kernel=SECOND_KERNEL),
    image(NEW, SECOND_KERNEL): driver_image(NEW, COSTS, kernel=SECOND_KERNEL),
    image(BAD): SimulatedImage(
        size_mib=COSTS.precompiled_mib, program=broken_driver("modprobe nvidia: invalid argument")
    ),
}


def policy(version: str, **driver: Any) -> dict[str, Any]:
    """The article's snippet, with another version."""
    return {
        "metadata": {"name": "cluster-policy"},
        "spec": {
            "driver": {
                "enabled": True,
                "usePrecompiled": True,
                "repository": "registry.local/nvidia",
                "image": "driver",
                "version": version,
                "upgradePolicy": {"autoUpgrade": True, "maxParallelUpgrades": 2, "maxUnavailable": "50%"},
                **driver,
            },
            "toolkit": {"enabled": True},
        },
    }


class Fleet(VirtualLab):
    """A cluster with managed drivers."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(cluster)
        self.pulls = Informer(
            self.client,
            PODS,
            clock=self.clock,
            rng=random.Random(0),
            namespace="tessera-system",
            label_selector=f"{APP_LABEL}={PULL_APP}",
        )
        self.watched = InformerGroup(self.nodes, self.pods, self.events, self.pulls)

    async def ask_for(self, version: str, **driver: Any) -> None:
        """The administrator writes another version into the policy."""
        await self.client.apply(CLUSTER_POLICIES, "cluster-policy", policy(version, **driver))

    def node(self, name: str) -> Node:
        found = self.nodes.cache.get(name)
        assert found is not None
        return found

    def loaded(self) -> dict[str, str | None]:
        """The driver that is really loaded on each node."""
        return {name: each.machine.loaded_driver for name, each in self.cluster.nodes.items() if each.machine}

    def states(self) -> dict[str, str]:
        return {name: self.node(name).metadata.labels.get(UPGRADE_STATE_LABEL, "") for name in self.cluster.nodes}

    def record(self, name: str) -> UpgradeRecord | None:
        return parse_upgrade_record(self.node(name).metadata.annotations.get(RECORD_ANNOTATION, ""))

    def all_serve(self) -> bool:
        """True if every node offers its cards."""
        return all(
            self.gpus(name) == {"nvidia.com/gpu": len(self.machine(name).uuids())} for name in self.cluster.nodes
        )

    async def reach(self, found: Callable[[], Any], what: str) -> None:
        await self.until(found, what, TIMEOUT)

    async def workload(self, name: str, node: str, **spec: Any) -> None:
        """A pod with a card on a node, which comes again elsewhere when it is evicted."""
        labels = {"app": name}
        made = manifest(name, {"nvidia.com/gpu": 1}, restartPolicy="Always", **spec)["spec"]
        preferred = {
            "weight": 100,
            "preference": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]},
        }
        made["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}
        template = {"metadata": {"labels": labels}, "spec": made}
        item = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
        await self.client.create(REPLICASETS.as_dicts(), item, "default")


Scenario = Callable[[Fleet], Awaitable[None]]


async def boot(
    scenario: Scenario,
    folder: Path,
    nodes: str = "4*1xA100-40GB",
    kernels: Mapping[str, str] | None = None,
    cluster_type: type[SimulatedCluster] = SimulatedCluster,
    *,
    seed: int = 0,
) -> None:
    """Runs a scenario in a cluster whose nodes have come up with the old driver, and keep their files in the folder."""
    options = ClusterOptions(
        cdi=folder,
        mig_config="",
        drivers=True,
        kernel=KERNEL,
        os_image="Ubuntu 22.04.3 LTS",
        catalogue=build_catalogue(COSTS, IMAGES),
        seed=seed,
    )
    specs = [msgspec.structs.replace(each, kernel=(kernels or {}).get(each.name, "")) for each in parse_nodes(nodes)]
    clock = LoopClock(1_800_000_000)
    cluster = cluster_type(specs, clock=clock, options=options, entrypoint=build_entrypoint(COMMANDS))
    async with cluster.running():
        await install_tessera(cluster.client("install"))
        fleet = Fleet(cluster)
        async with fleet.watched.running():
            await fleet.ask_for(OLD)
            await fleet.reach(fleet.all_serve, "every node serves with the old driver")
            await scenario(fleet)


def play(folder: Path, scenario: Scenario, nodes: str = "4*1xA100-40GB", **options: Any) -> None:
    """Runs a scenario in a cluster of its own; the options are those of :func:`boot`."""
    run_virtual(boot(scenario, Path(tempfile.mkdtemp(dir=folder)), nodes, **options))
