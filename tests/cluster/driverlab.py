"""A cluster whose machines have no driver of their own: images, registry, agents and the real controller."""

import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
from tests.support.virtual_lab import COMMANDS, VirtualLab

from tessera.api.nodes.node_marks import DriverPhase, DriverStatus, DriverStrategy
from tessera.clock import LoopClock
from tessera.driver.driver_sets import set_of
from tessera.driver.node_status import read_status
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.informer import Informer
from tessera.kube.resources import DAEMONSETS, JOBS, PODS, DaemonSet, Job, Pod
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import LabNodeSpec
from tessera_lab.drivers.driver_catalogue import build_catalogue, builder_image, driver_image
from tessera_lab.installation.install import build_entrypoint, install_tessera
from tessera_lab.kubelet.context import Entrypoint
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, SimulatedImage
from tessera_lab.simulation.cost_model import CostModel
from tessera_lab.simulation.virtual_time import run_virtual

COSTS = CostModel()
JAMMY = "Ubuntu 22.04.4 LTS"
K1, K2 = "5.15.0-69-generic", "5.15.0-70-generic"
REPOSITORY = "nvcr.io/nvidia/driver"
VERSION, NEWER = "525.125.06", "535.54.03"
#: When simulated time begins, seconds since 1970.
BEGAN = 1_800_000_000
NOT_PULLED = {"ErrImagePull", "ImagePullBackOff"}


def precompiled(kernel: str, version: str = VERSION, system: str = "ubuntu22.04", **fields: Any) -> dict[str, Any]:
    """An image with finished modules, under its name."""
    image = driver_image(version, COSTS, kernel=kernel)
    name = f"{REPOSITORY}:{version}-{kernel.replace('+', '_')}-{system}"
    return {name: msgspec.structs.replace(image, architectures=("amd64", "arm64"), **fields)}


def builder(version: str = VERSION, system: str = "ubuntu22.04") -> dict[str, Any]:
    """An image that compiles on the node, under its name."""
    return {f"{REPOSITORY}:{version}-{system}": builder_image(version, COSTS)}


def node(name: str, kernel: str = K1, os_image: str = JAMMY, architecture: str = "amd64") -> LabNodeSpec:
    return LabNodeSpec(name=name, cards=("T4",), kernel=kernel, os_image=os_image, architecture=architecture)


class Drivers(VirtualLab):
    """A cluster whose machines get their drivers from Tessera."""

    def __init__(self, cluster: SimulatedCluster, images: ImageCatalogue) -> None:
        super().__init__(cluster)
        self.catalogue = images
        self.sets: Informer[DaemonSet] = self._mirror(DAEMONSETS)
        self.own_pods: Informer[Pod] = self._mirror(PODS)
        self.jobs: Informer[Job] = self._mirror(JOBS)
        self.never_pulled: list[str] = []
        self.own_pods.add_handler(lambda event: self._look_for_trouble(event.object))
        self.everything = (self.sets, self.own_pods, self.jobs)

    def _mirror(self, resource: Any) -> Informer[Any]:
        return Informer(
            self.client, resource, clock=self.clock, rng=self.cluster.rng("test"), namespace="tessera-system"
        )

    def _look_for_trouble(self, pod: Pod) -> None:
        for each in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            if each.state is not None and each.state.waiting is not None and each.state.waiting.reason in NOT_PULLED:
                self.never_pulled.append(pod.metadata.name)

    async def policy(self, **driver: Any) -> None:
        """The article's policy, changed in parts; ``annotations`` are the object's."""
        annotations = driver.pop("annotations", {})
        spec = {"usePrecompiled": True, "repository": "nvcr.io/nvidia", "image": "driver", "version": VERSION}
        spec |= {"upgradePolicy": {"autoUpgrade": True}}
        await self.client.apply(
            CLUSTER_POLICIES,
            "cluster-policy",
            {"metadata": {"annotations": annotations}, "spec": {"driver": spec | driver}},
        )

    def told(self, name: str) -> DriverStatus | None:
        seen = self.nodes.cache.get(name)
        return read_status(seen.metadata.annotations.get("tessera.dev/driver", "")) if seen is not None else None

    def strategy(self, name: str) -> DriverStrategy | None:
        status = self.told(name)
        return status.strategy if status is not None else None

    def serves(self, name: str, strategy: DriverStrategy | None = None) -> bool:
        """True if a node has its driver and offers its card."""
        status = self.told(name)
        ready = status is not None and status.phase is DriverPhase.READY and self.gpus(name) == {"nvidia.com/gpu": 1}
        return ready and (strategy is None or self.strategy(name) is strategy)

    async def served(self, *names: str, strategy: DriverStrategy | None = None, seconds: float = 1800.0) -> None:
        how = f" by {strategy.value}" if strategy is not None else ""
        await self.until(lambda: all(self.serves(each, strategy) for each in names), f"{names} serve{how}", seconds)

    @property
    def driver_sets(self) -> list[Any]:
        return [made for each in self.sets.cache.values() if (made := set_of(each.metadata)) is not None]


Scenario = Callable[[Drivers], Awaitable[None]]


async def boot(
    scenario: Scenario,
    folder: Path,
    nodes: Sequence[LabNodeSpec],
    images: Mapping[str, SimulatedImage],
    *,
    registries: type[ImageCatalogue] = ImageCatalogue,
    processes: Callable[[SimulatedCluster], Entrypoint] | None = None,
    cluster_type: type[SimulatedCluster] = SimulatedCluster,
    **options: Any,
) -> None:
    """Runs a scenario in a fresh cluster on virtual time.

    Args:
        scenario: what is done.
        folder: where nodes keep files.
        nodes: its machines.
        images: what registries hold beside Tessera's own and what runs with drivers.
        registries: what they are.
        processes: runs Tessera's containers; by default as they are.
        cluster_type: how its parts reach each other.
        options: of the cluster.
    """
    found = build_catalogue(COSTS, images, kind=registries)
    cluster = cluster_type(
        nodes,
        clock=LoopClock(BEGAN),
        options=ClusterOptions(cdi=folder, catalogue=found, drivers=True, mig_config="", **options),
        entrypoint=processes or build_entrypoint(COMMANDS),
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cluster.running())
        await install_tessera(cluster.client("install"))
        lab = Drivers(cluster, found)
        lab.watched = type(lab.watched)(*lab.everything, lab.pods, lab.nodes, lab.events)
        await stack.enter_async_context(lab.watched.running())
        await scenario(lab)


def play(
    folder: Path,
    scenario: Scenario,
    nodes: Sequence[LabNodeSpec],
    images: Mapping[str, SimulatedImage],
    **options: Any,
) -> None:
    """Runs a scenario in a cluster of its own; the options are those of :func:`boot`."""
    run_virtual(boot(scenario, Path(tempfile.mkdtemp(dir=folder)), nodes, images, **options))
