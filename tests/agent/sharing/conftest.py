"""One node's static side: simulated cards, kubelet's device manager, and a advertiser that can be ended."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_runtime import make_parts
from tests.support.scenes import marked_scene, repeated_scene_player, scene_player
from tests.support.tasks import cancel_tasks

from tessera.agent.base.settings import AgentOptions, DesiredSharing
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.health.fault import CardProbed, CardsCordoned, CardsListed, HardwareEventReported, ProbeResult
from tessera.agent.health.faults import HealthStateMachine
from tessera.agent.health.policy import HealthPolicy
from tessera.agent.inventory.device_state import DeviceUsers
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.agent.mps.daemons import MpsDaemons
from tessera.agent.sharing.allocate_response import AllocateOptions, DeviceNodes
from tessera.agent.sharing.device_plugin import CdiFile, CdiPublisher
from tessera.agent.sharing.occupancy import DeviceOccupancy
from tessera.agent.sharing.offer import SharingProblem, SharingSettings
from tessera.agent.sharing.resource_advertiser import ResourceAdvertiser, StaticDevices
from tessera.agent.sharing.served_resources import AdvertisedNames, ServedResources
from tessera.agent.sharing.strategies import STRATEGIES, NodeStrategies, SharingStrategy
from tessera.agent.simulated import SimulatedLauncher
from tessera.api.nodes.node_marks import Cordon
from tessera.api.sharing.devices import SharingKind
from tessera.api.sharing.profile import MigStrategy
from tessera.api.sharing.profile_parser import parse_profile
from tessera.clock import Clock, LoopClock
from tessera.kube.resources import Node, NodeStatus, Pod, PodSpec
from tessera.kube.resources.meta import ObjectMeta
from tessera.kubelet.interfaces import Kubelet
from tessera.mig.models import model_by_short_name
from tessera.nvml.interface import GpuEvent, GpuEventKind
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.containers.environment import CdiRegistry
from tessera_lab.kubelet.device_plugins.inprocess import InProcessKubelet
from tessera_lab.kubelet.devices.checkpoint import MemoryCheckpoint
from tessera_lab.kubelet.devices.device_ledger import DeviceAllocationError, PodUid
from tessera_lab.kubelet.devices.device_manager import DeviceManager

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"

#: The profiles of the article that this follows, and one without a new name.
SLICE_4 = """
version: v1
sharing:
  timeSlicing:
    renameByDefault: true
    resources: [{name: nvidia.com/gpu, replicas: 4}]
"""
SLICE_4_SAME_NAME = SLICE_4.replace("renameByDefault: true", "renameByDefault: false")
WHOLE = "version: v1\n"


class SceneConfig:
    """The sharing profile that a test asks for."""

    def __init__(self, scene: "Scene") -> None:
        self._scene = scene

    @property
    def sharing(self) -> DesiredSharing:
        return self._scene.desired

    def note_applied_profile(self, name: str, _text: str) -> None:
        self._scene.settled.append(name)


class Scene:
    """One node."""

    def __init__(
        self,
        folder: Path,
        cards: str = "4xA100-40GB",
        *,
        strategy: MigStrategy = MigStrategy.MIXED,
        options: AllocateOptions | None = None,
        clock: Clock | None = None,
        seam: Kubelet | None = None,
        mig: bool = False,
        strategies: Mapping[SharingKind, SharingStrategy] = STRATEGIES,
    ) -> None:
        self.folder = folder
        self.clock: Clock = clock or LoopClock(1_700_000_000.0)
        self.machine = SimulatedMachine(cards, seed="node-1", mig=mig)
        self.hardware = InlineNvml(self.machine, self.clock)
        self.changes = ChangeNotifier()
        self.stocktaker = InventoryReader(self.hardware, self.changes)
        self.bus = InProcessKubelet()
        self.seam: Kubelet = seam or self.bus
        self.strategy = strategy
        self.strategies = strategies
        self.options = options or AllocateOptions()
        self.desired = DesiredSharing()
        self.settled: list[str] = []
        self.health = HealthStateMachine(HealthPolicy())
        self.fences: dict[str, frozenset[str]] = {}
        self.taken: set[str] = set()
        self.removed: list[str] = []
        #: Allocatable amounts that the agent wrote itself.
        self.lowered: dict[str, int] = {}
        #: Those that kubelet has not written since.
        self._now_lower: dict[str, int] = {}
        self.launcher = SimulatedLauncher(self.clock, self.machine)
        self.daemons = MpsDaemons(
            make_parts(
                options=AgentOptions(node_name="node-1", state_dir=folder),
                hardware=self.hardware,
                changes=self.changes,
                clock=self.clock,
            ),
            self.launcher,
        )
        self.pods: dict[str, dict[str, Any]] = {}
        #: Every allocatable that kubelet ever had, in order, without repetitions.
        self.seen: list[dict[str, int]] = []
        self.kubelet = DeviceManager(
            clock=self.clock,
            checkpoint=MemoryCheckpoint(),
            on_change=self._counted,
            running_pods=lambda: [(pod, PodUid(pod["metadata"]["uid"])) for pod in self.pods.values()],
        )
        self.cdi = CdiRegistry([folder / "cdi"])
        self.advertiser = self.make_advertiser()
        self.tasks: list[asyncio.Task[None]] = []

    def make_advertiser(self) -> ResourceAdvertiser:
        occupancy = DeviceOccupancy(DeviceUsers(self.seam, self), self.changes, self.folder / "given.json", self.clock)
        return ResourceAdvertiser(
            served=ServedResources(self.seam, self.changes, self.clock),
            devices=StaticDevices(
                gpus=lambda: self.stocktaker.inventory.gpus,
                faulty_gpus=self.health.faulty_gpus,
                health_of=self.health.health_of,
                fences=self.fences,
                exclusive_gpus=self.daemons.exclusive_gpus,
                switching_devices=frozenset,
                on_demand_resources=self.taken,
            ),
            settings=SharingSettings(SceneConfig(self), self.strategy, self.options),
            strategies=NodeStrategies(self.daemons, self.strategies),
            cdi=CdiPublisher(CdiFile(self.folder / "cdi"), occupancy, self.changes),
            device_nodes=DeviceNodes(self.hardware, self.clock),
            names=AdvertisedNames(self.folder / "names.json", self.node, self.patch_status, self.clock),
            changes=self.changes,
        )

    # The advertiser's surroundings -----------------------------------------------------------------------------------

    def xid(self, number: int, index: int, instance: tuple[int, int] = (-1, -1)) -> None:
        """The driver reports an error of a card, or of a compute instance on it."""
        gi_id, ci_id = (None if each < 0 else each for each in instance)
        event = GpuEvent(kind=GpuEventKind.XID, gpu=self.machine.uuids()[index], xid=number, gi_id=gi_id, ci_id=ci_id)
        self.health.handle(HardwareEventReported(event), self.clock.monotonic())
        self.changes.notify()

    async def probe(self, index: int, times: int = 3, pause: float = 20.0) -> None:
        """The card answers well several times."""
        for _ in range(times):
            await self.clock.sleep(pause)
            self.health.handle(CardProbed(gpu=self.uuid(index), result=ProbeResult.CLEAN), self.clock.monotonic())
            self.changes.notify()

    def live_pods(self) -> Sequence[Pod]:
        return [
            Pod(
                metadata=ObjectMeta(
                    name=name,
                    namespace="default",
                    uid=pod["metadata"]["uid"],
                    deletion_timestamp=pod["metadata"].get("deletionTimestamp"),
                ),
                spec=PodSpec(restart_policy=pod["spec"]["restartPolicy"]),
            )
            for name, pod in self.pods.items()
            if not pod["over"]
        ]

    def node(self) -> Node:
        capacity, allocatable = self.kubelet.ledger.counts()
        kept = dict.fromkeys(self.seen_names() - set(self.removed), "0")
        return Node(
            metadata=ObjectMeta(name="node-1"),
            status=NodeStatus(
                capacity=kept | {name: str(count) for name, count in capacity.items()},
                allocatable=kept | {name: str(count) for name, count in (allocatable | self._now_lower).items()},
            ),
        )

    async def patch_status(self, patch: Mapping[str, Any], /) -> None:
        self.removed += [name for name, count in patch["status"].get("capacity", {}).items() if count is None]
        lowered = {name: int(count) for name, count in patch["status"]["allocatable"].items() if count}
        self.lowered |= lowered
        self._now_lower |= lowered

    def seen_names(self) -> set[str]:
        return {name for counts in self.seen for name in counts}

    def _counted(self) -> None:
        self._now_lower = {}
        _, allocatable = self.kubelet.ledger.counts()
        if not self.seen or self.seen[-1] != allocatable:
            self.seen.append(allocatable)

    # The story --------------------------------------------------------------------------------------------------

    def problem(self) -> SharingProblem:
        assert self.advertiser.problem is not None
        return self.advertiser.problem

    async def begin_offering(self, profile: str, **counts: int) -> None:
        """Kubelet and the advertiser are up, and kubelet counts these devices."""
        await self.begin(profile)
        await self.offers(**counts)

    async def begin(self, profile: str | None = None) -> None:
        """Kubelet and the advertiser are up."""
        if profile is not None:
            self.follow(profile)
        await self.stocktaker.refresh()
        self.health.handle(CardsListed(frozenset(map(str, self.machine.uuids()))), self.clock.monotonic())
        self.bus.start(self.kubelet.add_plugin, self.kubelet)
        self.start()

    def start(self) -> None:
        self.tasks.append(asyncio.create_task(self.advertiser.run()))

    def start_daemons(self) -> None:
        """The supervision of MPS daemons runs."""
        self.tasks.append(asyncio.create_task(self.daemons.run()))

    def follow(self, text: str, name: str = "") -> None:
        """The node's label or the ConfigMap's content changes."""
        self.desired = DesiredSharing(name=name or "profile", text=text, profile=parse_profile(text))
        self.changes.notify()

    async def restart_advertiser(self) -> None:
        """The agent is ended and started again."""
        await self.end_advertiser()
        self.advertiser = self.make_advertiser()
        self.start()

    async def end_advertiser(self) -> None:
        await cancel_tasks(self.tasks)
        self.tasks.clear()

    async def end(self) -> None:
        failed = [task.exception() for task in self.tasks if task.done() and not task.cancelled()]
        await self.end_advertiser()
        await self.kubelet.stop()
        assert failed == []

    async def until(self, holds: Callable[[], bool], seconds: float = 60.0) -> None:
        """Looks until something holds; virtual time passes in between."""
        deadline = self.clock.monotonic() + seconds
        while not holds():
            assert self.clock.monotonic() < deadline, f"{self.allocatable}; {self.advertiser.problem}"
            await self.clock.sleep(0.02)

    async def offers(self, **counts: int) -> None:
        """Kubelet comes to count these, by the resources' short names with ``_`` for ``.``, and no others."""
        wanted = {f"nvidia.com/{name.replace('_', '.')}": count for name, count in counts.items()}
        await self.until(lambda: {name: count for name, count in self.allocatable.items() if count} == wanted)

    @property
    def allocatable(self) -> dict[str, int]:
        return self.kubelet.ledger.counts()[1]

    def uuid(self, index: int) -> str:
        return self.machine.uuids()[index]

    async def admit(
        self, name: str, *containers: Mapping[str, int], seen: bool = True, restarts: str = "Always"
    ) -> None:
        """A pod is bound to the node and kubelet admits it, maybe before the agent has ``seen`` it."""
        spec = {
            "restartPolicy": restarts,
            "containers": [
                {"name": f"c{number}", "resources": {"limits": {each: str(count) for each, count in asked.items()}}}
                for number, asked in enumerate(containers)
            ],
        }
        metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        self.pods[name] = {"metadata": metadata, "spec": spec, "over": False}
        if seen:
            self.changes.notify()
        try:
            await self.kubelet.allocate(self.pods[name], PodUid(f"uid-{name}"))
        except DeviceAllocationError:
            del self.pods[name]
            raise

    async def start_container(self, name: str, container: str = "c0") -> Mapping[str, str]:
        """Kubelet starts a container; returns its variables: Allocate's, then CDI's."""
        await self.kubelet.pre_start(PodUid(f"uid-{name}"), container)
        return self.env(name, container)

    def delete(self, name: str) -> None:
        """Somebody deletes a pod, whose containers still run."""
        self.pods[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.changes.notify()

    def cordon(self, *indexes: int) -> None:
        """A person cordons these cards, and no others."""
        cordons = tuple(Cordon(self.uuid(index), "fan is loud") for index in indexes)
        self.health.handle(CardsCordoned(cordons), self.clock.monotonic())
        self.changes.notify()

    def finish(self, name: str) -> None:
        """All containers of a pod have ended; kubelet still lists it."""
        self.pods[name]["over"] = True
        self.kubelet.release(PodUid(f"uid-{name}"))
        self.changes.notify()

    def index(self, name: str) -> int:
        """The index of a pod's first card."""
        return [str(each) for each in self.machine.uuids()].index(self.devices(name)[0])

    def devices(self, name: str, container: str = "c0") -> list[str]:
        held = self.kubelet.ledger.holdings(PodUid(f"uid-{name}"), container)
        return [device for each in held for device in each.device_ids]

    def env(self, name: str, container: str = "c0") -> Mapping[str, str]:
        """The variables of a container: Allocate's, then CDI's."""
        answers = self.kubelet.allocations(PodUid(f"uid-{name}"), container)
        merged: dict[str, str] = {}
        for each in answers:
            merged |= each.envs
        return {**merged, **self.cdi.edits([cdi for each in answers for cdi in each.cdi_devices]).env}

    async def cut(self, index: int, *profiles: tuple[str, int]) -> None:
        """Somebody cuts a card: profiles with their starts."""
        gpu = self.machine.uuids()[index]
        self.machine.set_mig_mode(gpu, True)
        geometry = model_by_short_name("A100-40GB").geometry
        for profile, start in profiles:
            gi_id = self.machine.create_gpu_instance(gpu, profile, start)
            self.machine.create_compute_instance(gpu, gi_id, geometry.profile(profile).ci_profile_index)
        await self.stocktaker.refresh()

    def mig_uuids(self, index: int) -> list[str]:
        found = self.machine.instances(self.machine.uuids()[index])
        return [compute.mig_uuid for each in found for compute in each.compute_instances]


@pytest.fixture
async def scene(request: pytest.FixtureRequest, tmp_path: Path, virtual_time: None) -> AsyncIterator[Scene]:
    """A fresh node on virtual time."""
    made = marked_scene(request, Scene, tmp_path)
    yield made
    await made.end()


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Plays a story on a fresh node, on virtual time, and ends everything."""
    return scene_player(Scene, tmp_path)


@pytest.fixture
def play_anew(tmp_path: Path) -> Callable[..., None]:
    """Plays many stories one after the other, each on a node of its own."""
    return repeated_scene_player(Scene, tmp_path)


@pytest.fixture
def make_scene() -> type[Scene]:
    """For stories on real time."""
    return Scene
