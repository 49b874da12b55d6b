"""A node with MIG layouts: simulated cards, kubelet's list of users, pods, and a process to kill."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.agent.conftest import MortalNvml
from tests.support.agent_runtime import make_parts

from tessera.agent.base.settings import DesiredLayout
from tessera.agent.base.wake_ups import EVERY, ChangeNotifier, Fact
from tessera.agent.inventory.gpu_inventory import CardOwnership, InventoryReader
from tessera.agent.mig_config.card_reconciler import RebootRequests
from tessera.agent.mig_config.events import LayoutState, LayoutStatus
from tessera.agent.mig_config.executor import DeviceDrainer, LayoutJournal, MigExecutor
from tessera.agent.mig_config.reconciler import LayoutReconciler
from tessera.api.mig_layouts import parse_layouts
from tessera.clock import LoopClock
from tessera.kube.eviction import Evictor
from tessera.kube.resources import Pod
from tessera.kube.resources.meta import ObjectMeta, Uid
from tessera.kubelet.interfaces import ClaimPlugin, ContainerDevices, ContainerResources, DevicePlugin, PodResources
from tessera.mig.models import model_by_short_name
from tessera.nvml.interface import Nvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

T = TypeVar("T")

#: The layouts of the walk through, and others.
LAYOUTS = """
version: v1
mig-configs:
  2x2g.10gb-3x1g.5gb:
    - devices: all
      mig-enabled: true
      mig-devices: {2g.10gb: 2, 1g.5gb: 3}
  apart:
    - devices: [0]
      mig-enabled: true
      mig-devices: {7g.40gb: 1}
    - devices: [1]
      mig-enabled: true
      mig-devices: {1g.5gb: 7}
  five-and-one:
    - devices: all
      mig-enabled: true
      mig-devices: {2g.10gb: 1, 1g.5gb: 5}
  too-much:
    - devices: [0]
      mig-enabled: true
      mig-devices: {1g.5gb: 7}
    - devices: [1]
      mig-enabled: true
      mig-devices: {3g.20gb: 2, 1g.5gb: 1}
  dynamic-half:
    - devices: [0]
      mig-enabled: true
      mig-devices: {}
    - devices: [1]
      mig-enabled: true
      mig-devices: {3g.20gb: 2}
"""


class Ledger:
    """Kubelet's pod-resources list: which pod was given which static devices."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[str, ...]] = {}
        self.silent = False

    async def serve(self, plugin: DevicePlugin) -> None:
        """No plugin is served here."""
        raise NotImplementedError(plugin.resource_name)

    async def serve_claims(self, plugin: ClaimPlugin, on_registered: Callable[[], None] = lambda: None) -> None:
        """No driver is served here."""
        raise NotImplementedError(plugin.driver_name)

    async def pod_resources(self) -> Sequence[PodResources]:
        """Every pod with its devices."""
        if self.silent:
            raise ConnectionError("kubelet does not answer")
        return [
            PodResources(
                name=name,
                namespace="default",
                containers=(
                    ContainerResources(
                        name="main", devices=(ContainerDevices(resource_name="nvidia.com/gpu", device_ids=ids),)
                    ),
                ),
            )
            for name, ids in self.held.items()
        ]


class WatchedNvml(MortalNvml):
    """Cards at one of whose calls something else happens as well."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._happens: dict[int, Callable[[], None]] = {}

    def at(self, number: int, happens: Callable[[], None]) -> None:
        """Something happens right after the call of this number took effect."""
        self._happens[number] = happens

    async def call(self, operation: str, call: Callable[[Nvml], T], *, card: str = "") -> T:
        """See :meth:`.AsyncNvml.call`."""
        answer = await super().call(operation, call, card=card)
        if happens := self._happens.pop(self.calls, None):
            happens()
        return answer


class RecordingChanges(ChangeNotifier):
    """ChangeNotifier of a node that notes every status of its layout: each new one is a change."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node

    def about(self, _facts: Fact) -> ChangeNotifier:
        """The same for all facts, so that each change is noted."""
        return self

    def notify(self, facts: Fact = EVERY) -> None:
        """See :meth:`.ChangeNotifier.notify`."""
        self._node.record_status()
        super().notify(facts)


def fenced_devices(layouts: LayoutReconciler) -> frozenset[str]:
    """UUIDs of all devices that must not be allocated now."""
    return frozenset().union(*layouts.fences.values())


class Node:
    """The node.

    Attributes:
        machine: its cards.
        kubelet: who holds what.
        told: every status so far.
        reboots: boot ids from which a reboot was asked for.
        counted_too_many: resources of which the Node object counts too many.
        boot: the boot id now.
    """

    def __init__(
        self,
        folder: Path,
        cards: str = "A100-40GB",
        *,
        mig: bool = True,
        may_reboot: bool = False,
        evictor: Evictor | None = None,
        in_file: bool = False,
        **machine: Any,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.clock = LoopClock(1_700_000_000.0)
        state = folder / "cards.json" if in_file else None
        self.machine = SimulatedMachine(cards, seed="node-1", mig=mig, state=state, **machine)
        self.kubelet = Ledger()
        self.pods: dict[str, Pod] = {}
        self.desired = DesiredLayout()
        self.changes = ChangeNotifier()
        self.told: list[LayoutStatus] = []
        #: GPU instances that are told to be destroyed: their card and id.
        self.gone: list[tuple[str, int]] = []
        self.reboots: list[str] = []
        self.counted_too_many: tuple[str, ...] = ()
        self.boot = "boot-1"
        self.evictor = evictor
        self.may_reboot = may_reboot
        self.reboot_fails = False
        self.ownership = CardOwnership(folder / "owners.json")
        self.task: asyncio.Task[None] | None = None
        self.layouts: LayoutReconciler | None = None
        self.hardware: WatchedNvml | None = None

    async def _close(self, devices: frozenset[str]) -> None:
        """No pod is on its way to the devices."""
        assert self.layouts is None or devices

    # The process ------------------------------------------------------------------------------------------------

    def start(self, *, last: int = 0, after: bool = False) -> None:
        """Starts the process; it dies at its ``last``-th call of NVML."""
        self.layouts = None
        self.changes = RecordingChanges(self)
        self.ownership = CardOwnership(self.folder / "owners.json")
        self.hardware = WatchedNvml(self.machine, self.clock, last=last, after=after)
        self.inventory_reader = InventoryReader(self.hardware, self.changes)
        runtime = make_parts(
            changes=self.changes, clock=self.clock, hardware=self.hardware, kubelet=self.kubelet, mirror=self
        )
        users = DeviceDrainer(
            runtime,
            self.evictor,
            recent_allocations=frozenset,
            overcounted_resources=lambda: self.counted_too_many,
            close=self._close,
        )
        journal = LayoutJournal(self.folder / "layouts.json")
        reboots = None
        if self.may_reboot:
            reboots = RebootRequests(
                runtime,
                self._reboot,
                journal=journal,
                users=users,
            )
        self.layouts = LayoutReconciler(
            runtime,
            desired=lambda: self.desired,
            inventory=self.inventory_reader,
            ownership=self.ownership,
            executor=MigExecutor(
                runtime,
                inventory=self.inventory_reader,
                journal=journal,
                on_reset=self.note_card_reset,
                on_destroyed=self.note_instance_destroyed,
            ),
            users=users,
            reboots=reboots,
        )
        self.task = asyncio.create_task(self._process(self.layouts))
        self.hardware.kill = self.task.cancel

    async def _process(self, layouts: LayoutReconciler) -> None:
        await self.inventory_reader.refresh()
        await layouts.run()

    def record_status(self) -> None:
        """Notes the status if it is another one now."""
        status = self.layouts.status if self.layouts is not None else None
        if status is not None and status != (self.told[-1] if self.told else LayoutStatus()):
            self.told.append(status)

    async def end(self) -> None:
        """The process is killed."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
            if not self.task.cancelled() and self.task.exception() is not None:
                raise self.task.exception() or AssertionError

    async def succeed_the_dead(self) -> None:
        """Starts another process when this one has died."""
        assert self.task is not None
        await asyncio.wait([self.task])
        self.start()

    # What the layouts ask of the node -----------------------------------------------------------------------------

    def live_pods(self) -> Sequence[Pod]:
        return list(self.pods.values())

    async def list_bound_pods(self) -> Sequence[Pod]:
        return self.live_pods()

    def note_card_reset(self, gpu: str) -> None:
        assert gpu in self.machine.uuids()

    def note_instance_destroyed(self, gpu: str, gi_id: int) -> None:
        self.gone.append((gpu, gi_id))

    def boot_id(self) -> str:
        """The boot id now."""
        return self.boot

    async def _reboot(self) -> None:
        if self.reboot_fails:
            raise FileNotFoundError("no such command")
        self.reboots.append(self.boot)

    def rebooted(self) -> None:
        """The machine comes up again."""
        self.boot = f"boot-{len(self.reboots) + 1}"
        self.machine.reboot()

    # What people and pods do ------------------------------------------------------------------------------------

    def label(self, name: str) -> None:
        """The administrator picks a layout."""
        self.desired = DesiredLayout(name=name, entries=parse_layouts(LAYOUTS).layouts.get(name), reason="the label")
        self.changes.notify()

    def pod(self, name: str, *devices: str, uid: str = "") -> None:
        """A pod is given devices."""
        assert self.layouts is None or not fenced_devices(self.layouts) & set(devices)
        meta = ObjectMeta(name=name, namespace="default", uid=Uid(uid or f"uid-{name}"))
        self.pods[name] = Pod(metadata=meta)
        self.kubelet.held[name] = devices
        self.changes.notify()

    def ends(self, name: str) -> None:
        """A pod ends."""
        self.pods.pop(name, None)
        self.kubelet.held.pop(name, None)
        self.changes.notify()

    async def until(self, holds: Callable[[], bool], seconds: float = 120.0) -> float:
        """Waits until something holds; returns after how many seconds."""
        began = self.clock.monotonic()
        while not holds():
            if self.clock.monotonic() - began > seconds:
                raise AssertionError(f"did not come true in {seconds:.0f} s: {self.status}, {self.multisets()}")
            await self.clock.sleep(0.05)
        return self.clock.monotonic() - began

    async def succeeds(self, seconds: float = 120.0) -> float:
        """Waits until the layout is in force."""
        return await self.until(lambda: self.state(LayoutState.SUCCESS), seconds)

    def state(self, state: LayoutState, reason: str = "") -> bool:
        """True if the desired layout has this status."""
        now = self.status
        return (now.layout, now.state) == (self.desired.name, state) and reason in ("", now.reason)

    @property
    def status(self) -> LayoutStatus:
        """The last one."""
        assert self.layouts is not None
        return self.layouts.status

    # The cards --------------------------------------------------------------------------------------------------

    def make(self, card: int, profile: str, start: int) -> str:
        """Somebody makes an instance; returns its MIG device's UUID."""
        uuid = self.machine.uuids()[card]
        row = model_by_short_name("A100-40GB").geometry.profile(profile)
        gi_id = self.machine.create_gpu_instance(uuid, profile, start)
        return str(self.machine.create_compute_instance(uuid, gi_id, row.ci_profile_index).mig_uuid)

    def multisets(self) -> list[dict[str, int]]:
        """Instances that a container can use, by profile, for each card."""
        return [self.multisets_of(card) for card in range(len(self.machine.uuids()))]

    def multisets_of(self, card: int) -> dict[str, int]:
        """The same for one card."""
        made = self.machine.instances(self.machine.uuids()[card])
        return dict(Counter(each.profile for each in made if each.compute_instances))

    def devices(self) -> set[str]:
        """Every MIG device's UUID."""
        made = [each for uuid in self.machine.uuids() for each in self.machine.instances(uuid)]
        return {str(each.mig_uuid) for one in made for each in one.compute_instances}


async def played(node: Node, story: Callable[[Node], Awaitable[None]]) -> None:
    """Plays a story and ends the process."""
    try:
        await story(node)
    finally:
        await node.end()
