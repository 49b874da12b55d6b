"""The scenarios of an experiment, and its cluster: its order of steps, its images and its costs.

Both orders of steps see the same costs, the same cluster and the same chance. Node feature discovery labels nodes in
both; one waits for it, the other does not. Kubelets publish capacity every ten seconds, as real ones do, in both.

The scenarios are those of Red Hat's article: OpenShift 4.13, one Tesla T4 a node, drivers that are built or
precompiled. The means are theirs (Red Hat, "How precompiled drivers improve NVIDIA GPU autoscaling on Red Hat
OpenShift"); the article has no number of runs and no spread. Kernel and image are those of a 4.13 release.

:func:`article_registries` makes the registries of a lab of machines without drivers. The article's repository has
finished modules of its driver for that kernel, of a newer driver, and of one that never comes up; and images that build
them for any other kernel. The publishers are the article's, the next versions are invented, and everything is
simulated.
"""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tessera.clock import LoopClock
from tessera.doctor.manifests import install_manifests
from tessera.kube.client import Client
from tessera.provisioning.startup_deadline import STARTUP_TAINT
from tessera_lab.cloud.autoscaler.process import GPU_LABEL, ClusterAutoscaler
from tessera_lab.cloud.autoscaler.rules import AutoscalerTimers
from tessera_lab.cloud.cloud import Cloud
from tessera_lab.cloud.node_groups import NodeGroup, RandomDelay
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.node_maker import feature_labels
from tessera_lab.cluster.options import LabNodeSpec
from tessera_lab.drivers.driver_catalogue import INTERNAL_REGISTRY, build_catalogue, builder_image, driver_image
from tessera_lab.drivers.driver_containers import Draw, broken_driver, driver_toolkit, run_until_stopped
from tessera_lab.installation.install import apply_manifests
from tessera_lab.kubelet.context import Entrypoint
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, SimulatedImage
from tessera_lab.reference_operator import manifests
from tessera_lab.reference_operator.manifests import REFERENCE, ReferenceWaits
from tessera_lab.reference_operator.operator import (
    ReferenceOperator,
    device_plugin_program,
    toolkit_program,
    validator_program,
)
from tessera_lab.simulation.cost_model import CostModel, draw_durations

KERNEL = "5.14.0-284.25.1.el9_2.x86_64"
OSTREE = "413.92.202307260246-0"
OS_IMAGE = f"Red Hat Enterprise Linux CoreOS {OSTREE} (Plow)"
OS_TAG = "rhcos4.13"
VERSION = "525.125.06"
#: OpenShift brings the Driver Toolkit of each release in an image stream of this name.
DRIVER_TOOLKIT = f"{INTERNAL_REGISTRY}/openshift/driver-toolkit:{OSTREE}"
MODEL = "T4"

#: The policy's name, as OpenShift's console makes it.
POLICY = "gpu-cluster-policy"
#: A driver that comes after the article's, and one that hangs for longer than anybody waits for it.
NEWER, BROKEN = "535.104.05", "535.129.03"
_HANGS = 7200.0
#: The date that a cluster's time zero stands for.
EPOCH = 1_800_000_000.0
#: Makes what runs Tessera's own containers in a cluster; from
#: :func:`tessera_lab.installation.install.build_entrypoint`.
MakeEntrypoint = Callable[[SimulatedCluster], Entrypoint]


class ArticleScenario(msgspec.Struct, frozen=True, kw_only=True):
    """One way to bring drivers to nodes.

    Attributes:
        name: for people and files.
        title: a line for tables.
        precompiled: the image holds finished modules.
        repository: where the driver's image lies.
        image: its name.
    """

    name: str
    title: str
    precompiled: bool
    repository: str
    image: str

    @property
    def reference(self) -> str:
        """The image that the reference operator names."""
        kernel = f"{KERNEL}-" if self.precompiled else ""
        return f"{self.repository}/{self.image}:{VERSION}-{kernel}{OS_TAG}"

    def policy(self) -> dict[str, Any]:
        """The ClusterPolicy, with the article's snippet in it."""
        driver: dict[str, Any] = {"repository": self.repository, "image": self.image, "version": VERSION}
        if self.precompiled:
            driver["usePrecompiled"] = True
        return {
            "apiVersion": "nvidia.com/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": POLICY},
            "spec": {
                "driver": driver,
                "toolkit": {
                    "repository": "nvcr.io/nvidia/k8s",
                    "image": "container-toolkit",
                    "version": "v1.13.4-ubi8",
                },
            },
        }


BUILT = ArticleScenario(
    name="built", title="built on the node", precompiled=False, repository="nvcr.io/nvidia", image="driver"
)
PUBLIC = ArticleScenario(
    name="precompiled-public",
    title="precompiled, public registry",
    precompiled=True,
    repository="quay.io/vemporop",
    image="nvidia-gpu-driver",
)
INTERNAL = ArticleScenario(
    name="precompiled-internal",
    title="precompiled, cluster's registry",
    precompiled=True,
    repository=f"{INTERNAL_REGISTRY}/nvidia",
    image="nvidia-gpu-driver",
)

SCENARIOS: Mapping[str, ArticleScenario] = {each.name: each for each in (BUILT, PUBLIC, INTERNAL)}


def article_machine(template: LabNodeSpec, costs: CostModel) -> LabNodeSpec:
    """Makes a template one of the article's: images are pulled while a new node waits for its network."""
    return msgspec.structs.replace(template, network_seconds=costs.network_seconds)


def article_registries() -> dict[str, Any]:
    """The options of a cluster of that scenario; its kubelets publish as real ones do."""
    costs = CostModel()
    name = f"{PUBLIC.repository}/{PUBLIC.image}"
    images = {
        f"{name}:{version}-{KERNEL}-{OS_TAG}": driver_image(version, costs, kernel=KERNEL)
        for version in (VERSION, NEWER)
    }
    images |= {f"{name}:{version}-{OS_TAG}": builder_image(version, costs) for version in (VERSION, NEWER, BROKEN)}
    images[f"{name}:{BROKEN}-{KERNEL}-{OS_TAG}"] = SimulatedImage(
        size_mib=costs.precompiled_mib, program=broken_driver("the driver does not come up", after=_HANGS)
    )
    images[DRIVER_TOOLKIT] = SimulatedImage(size_mib=costs.driver_toolkit_mib, program=driver_toolkit(costs))
    return {
        "drivers": True,
        "kernel": KERNEL,
        "os_image": OS_IMAGE,
        "catalogue": build_catalogue(costs, images),
        "publish_every": REFERENCE.publish_every,
    }


class ExperimentCluster:
    """A running cluster on virtual time.

    Attributes:
        cluster: the cluster.
        clock: its time.
        client: an administrator's.
    """

    def __init__(self, cluster: SimulatedCluster, costs: CostModel, waits: ReferenceWaits = REFERENCE) -> None:
        self.cluster = cluster
        self.clock = cluster.clock
        self.client: Client = cluster.client("bench")
        self._costs = costs
        self._waits = waits

    @asynccontextmanager
    async def run_autoscaler(
        self, timers: AutoscalerTimers, *, labelled: bool = True, tainted: bool = False, maximum: int = 10
    ) -> AsyncIterator[ClusterAutoscaler]:
        """Gives the cluster a node group with cards, and an autoscaler for it.

        Args:
            timers: the autoscaler's.
            labelled: nodes carry the accelerator label from registration on.
            tainted: nodes carry Tessera's startup taint from registration on.
            maximum: nodes of the group at most.
        """
        spread = self._costs.spread
        group = NodeGroup(
            name="gpu",
            template=article_machine(LabNodeSpec(name="gpu", cards=(MODEL,)), self._costs),
            maximum=maximum,
            labels=({GPU_LABEL: "nvidia-t4"} if labelled else {}) | self._early_labels(),
            taints=({"key": STARTUP_TAINT, "effect": "NoSchedule"},) if tainted else (),
            vm=RandomDelay(mean=self._costs.vm_seconds, spread=spread),
            join=RandomDelay(mean=self._costs.join_seconds, spread=spread),
        )
        cloud = Cloud(self.cluster, [group])
        async with cloud.running():
            scaler = ClusterAutoscaler(
                self.cluster.client("cluster-autoscaler"), self.cluster.hardware_clock, cloud, timers
            )
            async with _run_in_background(scaler.run()):
                yield scaler

    def _early_labels(self) -> dict[str, Any]:
        """Labels of features from registration on, for pods of the reference that begin before a node is Ready."""
        return {} if self._waits.after_ready else feature_labels(KERNEL, OS_IMAGE, cards=True)


@asynccontextmanager
async def start_reference(
    scenario: ArticleScenario, costs: CostModel, *, cards: bool, seed: int, waits: ReferenceWaits = REFERENCE
) -> AsyncIterator[ExperimentCluster]:
    """A cluster with the reference operator.

    Args:
        scenario: how drivers come.
        costs: how long things take.
        cards: its node has a card; otherwise nodes with cards are yet to come.
        seed: of chance.
        waits: what the operator waits for.
    """
    draw = draw_durations(costs, random.Random(f"{seed}/costs"))
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(_folder())
        images = _images(costs, draw, waits)
        cluster = _cluster(costs, images, folder, cards=cards, seed=seed, waits=waits)
        await stack.enter_async_context(cluster.running())
        await apply_manifests(cluster.client("install"), [each for each in install_manifests() if _is_definition(each)])
        operator = ReferenceOperator(
            cluster.client("gpu-operator"),
            cluster.clock,
            costs,
            driver_toolkit="" if scenario.precompiled else DRIVER_TOOLKIT,
            waits=waits,
            draw=draw,
        )
        await stack.enter_async_context(_run_in_background(operator.run()))
        yield ExperimentCluster(cluster, costs, waits)


@asynccontextmanager
async def start_tessera(
    costs: CostModel,
    *,
    cards: bool,
    seed: int,
    make: MakeEntrypoint,
    publish_every: float | None = REFERENCE.publish_every,
) -> AsyncIterator[ExperimentCluster]:
    """A cluster with Tessera installed: the production processes, as their manifests have them.

    Args:
        costs: how long things take.
        cards: its node has a card.
        seed: of chance.
        make: makes what runs Tessera's containers.
        publish_every: kubelets publish capacity so often, seconds; None for at once.
    """
    draw = draw_durations(costs, random.Random(f"{seed}/costs"))
    images = _images(costs, draw, REFERENCE)
    with _folder() as folder:
        waits = ReferenceWaits(publish_every=publish_every)
        cluster = _cluster(costs, images, folder, cards=cards, seed=seed, waits=waits, make=make)
        async with cluster.running():
            await apply_manifests(cluster.client("install"), [_without_siblings(each) for each in install_manifests()])
            yield ExperimentCluster(cluster, costs)


def _cluster(
    costs: CostModel,
    images: ImageCatalogue,
    folder: Path,
    *,
    cards: bool,
    seed: int,
    waits: ReferenceWaits = REFERENCE,
    make: MakeEntrypoint | None = None,
) -> SimulatedCluster:
    nodes = [LabNodeSpec(name="node-1", cards=(MODEL,) if cards else ())]
    return SimulatedCluster(
        nodes,
        clock=LoopClock(EPOCH),
        options=ClusterOptions(
            cdi=folder,
            catalogue=images,
            drivers=True,
            kernel=KERNEL,
            os_image=OS_IMAGE,
            network_seconds=costs.network_seconds,
            nfd_seconds=costs.nfd_seconds if waits.discovery else 0.0,
            publish_every=waits.publish_every,
            mig_config="",
            seed=seed,
        ),
        entrypoint=make,
    )


@contextmanager
def _folder() -> Iterator[Path]:
    """Makes a folder for the files of the cluster's nodes, and removes it with the cluster."""
    with tempfile.TemporaryDirectory(prefix="tessera-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _images(costs: CostModel, draw: Draw, waits: ReferenceWaits) -> ImageCatalogue:
    images: dict[str, SimulatedImage] = {
        each.reference: (
            driver_image(VERSION, costs, draw=draw) if each.precompiled else builder_image(VERSION, costs, draw=draw)
        )
        for each in SCENARIOS.values()
    }
    images |= {
        DRIVER_TOOLKIT: SimulatedImage(size_mib=costs.driver_toolkit_mib, program=driver_toolkit(costs, draw=draw)),
        manifests.VALIDATOR: SimulatedImage(
            size_mib=costs.operand_mib, program=validator_program(costs, waits=waits, draw=draw)
        ),
        manifests.TOOLKIT: SimulatedImage(
            size_mib=costs.toolkit_mib, program=toolkit_program(costs, waits=waits, draw=draw)
        ),
        manifests.PLUGIN: SimulatedImage(
            size_mib=costs.operand_mib, program=device_plugin_program(costs, waits=waits, draw=draw)
        ),
        **{
            each: SimulatedImage(size_mib=costs.operand_mib, program=run_until_stopped)
            for each in manifests.OTHERS.values()
        },
    }
    return build_catalogue(costs, images, draw=draw)


def _without_siblings(manifest: dict[str, Any]) -> dict[str, Any]:
    """The controller without an election: nobody runs against it, and each renewal of a lease costs real time."""
    if (manifest["kind"], manifest["metadata"]["name"]) == ("Deployment", "tessera-controller"):
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        container["args"] = [*container["args"], "--no-leader-election"]
    return manifest


def _is_definition(manifest: Mapping[str, Any]) -> bool:
    return manifest["kind"] in {"CustomResourceDefinition", "Namespace"}


@asynccontextmanager
async def _run_in_background(work: Any) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        try:
            yield
        finally:
            task.cancel()
