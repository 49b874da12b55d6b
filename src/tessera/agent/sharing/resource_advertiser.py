"""Advertises the static GPUs to kubelet: whole, shared, or cut by a MIG configuration.

At every change the advertiser decides anew from the start: the offer (``offer.py``), the entries that must be withheld,
and so the entries that each resource's plugin lists and allocates (``device_plugin.py``, ``served_resources.py``). An
entry is withheld while its device is unhealthy or fenced, while a pod holds the device under another name
(``occupancy.py``), while its strategy does not serve it yet (``strategies.py``), and while its device nodes are
unknown.

Order of a change:

1. The advertiser lowers the Node's amounts, and waits for the pods that are on their way.
2. The plugins stop allocating entries that left the offer, at once.
3. The advertiser asks kubelet which pods hold devices. It advertises nothing before kubelet has answered once.
4. It writes the new devices into the CDI file.
5. It sends the new lists.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tessera.agent.base.settings import ServicePlan
from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.agent.inventory.device_state import DeviceHealth, DeviceScope, StartCheck, entry_health
from tessera.agent.inventory.gpu_inventory import GpuState
from tessera.agent.sharing.allocate_response import RETRY, DeviceNodes, unique
from tessera.agent.sharing.device_plugin import AllocationCalls, AllocationTerms, CdiPublisher, StaticDevicePlugin
from tessera.agent.sharing.occupancy import (
    EntryKey,
    EntryStates,
    WithholdingReasons,
    count_entries,
    find_withheld_entries,
    judge_entries,
    overcounted_resources,
)
from tessera.agent.sharing.offer import (
    AppliedSharing,
    DecidedOffer,
    SharingProblem,
    SharingSettings,
    choose_offer,
)
from tessera.agent.sharing.served_resources import AdvertisedNames, ClosingDevices, ServedResources
from tessera.agent.sharing.strategies import NodeStrategies, drop_cards
from tessera.api.names import WHOLE_CARDS
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, Advertisement, device_of
from tessera.kubelet.interfaces import Device as ListedDevice
from tessera.placement.topology import Topology

_log = logging.getLogger(__name__)

#: What decides about the offer.
_OFFERED = Fact.CARDS | Fact.OWNERS | Fact.DESIRED_PROFILE | Fact.SLICE_RESOURCES
#: What decides, besides, about the entries of an offer: which are withheld, and which kubelet still counts.
_HELD = Fact.HEALTH | Fact.LAYOUT | Fact.MPS | Fact.PODS | Fact.ALLOCATIONS | Fact.LISTS | Fact.NODE_STATUS


@dataclass(frozen=True, kw_only=True)
class StaticDevices:
    """The present state, as other parts of the agent know it, of the devices that are not made on demand.

    Attributes:
        gpus: the static GPUs as last read, by index.
        faulty_gpus: UUIDs of the cards with faults; the same set, always of now.
        health_of: the health of a GPU with faults, or of an instance on it.
        fences: by card, UUIDs of its devices whose MIG layout is about to change; the MPS daemons release them.
        exclusive_gpus: UUIDs of the cards that MPS daemons have or had, until their compute mode is the default again.
        switching_devices: UUIDs of those whose compute mode changes.
        on_demand_resources: the extended resources that are served on demand on this node; always those of now.
    """

    gpus: Callable[[], Sequence[GpuState]]
    faulty_gpus: AbstractSet[str]
    health_of: Callable[[DeviceScope], DeviceHealth]
    fences: Mapping[str, frozenset[str]]
    exclusive_gpus: AbstractSet[str]
    switching_devices: Callable[[], frozenset[str]]
    on_demand_resources: AbstractSet[str]

    def changing_devices(self) -> frozenset[str]:
        """UUIDs of GPUs and MIG devices whose layout is about to change."""
        return frozenset().union(*self.fences.values())

    def fenced_devices(self) -> frozenset[str]:
        """UUIDs of GPUs and MIG devices that must not be allocated now."""
        return self.changing_devices().union(self.switching_devices() if self.exclusive_gpus else ())


class ResourceAdvertiser:
    """Advertises the static devices to kubelet.

    Args:
        served: the device plugins.
        devices: the static devices as they are now.
        settings: the desired profile and the installation's defaults.
        strategies: the sharing strategies, with the processes that they need.
        cdi: the CDI file, and the containers that hold devices.
        device_nodes: device nodes and topology of the GPUs.
        names: the resources that this node ever advertised.
        changes: announces that a value may have changed; notified when kubelet has read a list.
        start_check: tests the devices of pods that ask for it; ``None`` for nobody.
    """

    def __init__(
        self,
        *,
        served: ServedResources,
        devices: StaticDevices,
        settings: SharingSettings,
        strategies: NodeStrategies,
        cdi: CdiPublisher,
        device_nodes: DeviceNodes,
        names: AdvertisedNames,
        changes: ChangeNotifier,
        start_check: StartCheck | None = None,
    ) -> None:
        self._served = served
        self._devices = devices
        self._settings = settings
        self._strategies = strategies
        self._cdi = cdi
        self._occupancy = cdi.occupancy
        self._device_nodes = device_nodes
        self._names = names
        self._changes = changes

        #: The entries that wait for a pod to end, with the reason. Those of the last offer and the last answer.
        self._blocked: Mapping[EntryKey, str] = {}
        #: The entries as the last lists showed them.
        self._states = EntryStates()
        #: By resource, the healthy entries, where a pod with such an entry is about to end: the Node has to count less.
        self._lowered: dict[str, int] = {}
        self._closing = ClosingDevices(self._lower_without, names.clock)
        self._calls = AllocationCalls(
            cdi=cdi,
            strategies=strategies,
            settings=settings,
            is_joint=lambda: len(names.known_resources) > 1,
            changes=changes,
            start_check=start_check,
            closed_devices=self.closed_devices,
        )
        #: The processes that serve shares, as they were set last; ``None`` before.
        self._plans: Mapping[str, ServicePlan] | None = None
        #: Offer, and state of its entries, when the other parts were notified last.
        self._announced: tuple[object, object] = (None, None)

    # State for other parts --------------------------------------------------------------------------------------

    @property
    def in_force(self) -> AppliedSharing | None:
        """The offer and its profile; ``None`` before the first decision."""
        return self._decided.applied

    @property
    def offer(self) -> Advertisement:
        """All advertised entries, healthy or not."""
        return self._decided.offer

    @property
    def profile(self) -> str:
        """Name of the applied profile; empty for none."""
        return "" if self.in_force is None else self.in_force.name

    @property
    def withheld_entries(self) -> Mapping[EntryKey, str]:
        """The entries that are withheld now, by resource and id, each with the reason."""
        return self._states.withheld

    def describe_occupant(self, card: str) -> str:
        """Names a pod that holds a part of a GPU, or says that kubelet has not answered yet; empty if none does."""
        if not self._occupancy.has_answer:
            return "kubelet has not said yet which pods hold devices"
        return self._occupancy.holder(card, self._decided.parents)

    @property
    def serves(self) -> bool:
        """True if kubelet has read the newest list of every resource; also if there is none."""
        if self.in_force is None:
            return False
        plugins = self._served.plugins
        if self.offer.resources and not self._occupancy.has_answer:
            return False
        return plugins.keys() >= self.offer.resources.keys() and all(each.is_listed for each in plugins.values())

    @property
    def recent_allocations(self) -> frozenset[str]:
        """UUIDs of devices allocated so recently that kubelet may not list their containers yet."""
        return self._occupancy.recent_allocations

    @property
    def topology(self) -> Topology:
        """How the cards are joined."""
        return self._device_nodes.topology

    def taken_devices(self, resource: str) -> frozenset[str] | None:
        """UUIDs of a resource's devices that kubelet cannot allocate; None while it has not said who holds them."""
        if not self._occupancy.has_answer:
            return None
        withheld = {device_of(entry) for name, entry in self._states.withheld if name == resource}
        return self._occupancy.held_devices(resource) | withheld

    @property
    def held_withheld(self) -> Mapping[str, int]:
        """By resource, the withheld entries that pods hold: kube-scheduler counts these pods against the others."""
        return self._occupancy.count_held(self._states.withheld)

    @property
    def overcounted_resources(self) -> tuple[str, ...]:
        """The resources of which the Node still counts entries that are withheld or gone."""
        allocatable = self._names.allocatable()
        if allocatable is None:
            return ()
        return overcounted_resources(allocatable, self._counts(self.offer, self.closed_devices()))

    @property
    def problem(self) -> SharingProblem | None:
        """The reason that the node does not advertise the desired profile; ``None`` if it does."""
        if self._decided.refusal is not None:
            return self._decided.refusal
        if self._occupancy.silence_text is not None:
            return SharingProblem("KubeletNotResponding", self._occupancy.silence_text)
        if self._cdi.failed is not None:
            return SharingProblem("CdiFailed", self._cdi.failed)
        if self._served.refused_resources:
            return SharingProblem("ResourceRefused", "; ".join(self._served.refused_resources.values()))
        if self._calls.options.uses_cdi and self._device_nodes.failed:
            return SharingProblem("NvmlFailed", "; ".join(unique(self._device_nodes.failed.values())))
        if waiting := unique(self._blocked.values()):
            return SharingProblem("CardsInUse", f"not allocated until its pods have ended: {'; '.join(waiting)}")
        return None

    async def close(self, devices: frozenset[str]) -> None:
        """Returns when devices can be fenced: no pod is on its way to them."""
        await self._closing.close(devices)

    async def withdraw(self, resources: Collection[str]) -> None:
        """Returns when these resources can end: no pod is on its way to a device of them."""
        await self._names.withdraw(resources)

    async def _lower_without(self, devices: frozenset[str]) -> bool:
        return await self._names.lower_allocatable(self._counts(self.offer, self.closed_devices() | devices))

    # The loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Advertises until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._served.start(group, self._calls)
            while True:
                arrival = await self._seconds_until_change()
                if not arrival:
                    self._decide()
                changes = self._changes.about(_OFFERED | _HELD if self._serves_any() else _OFFERED)
                count = changes.count
                pause = await self._update(arrival)
                self._announce()
                await changes.wait(count, pause)

    def _serves_any(self) -> bool:
        """True if the static side has, or had, a device on this node: then it matters who holds one."""
        former = self._names.known_resources - self._devices.on_demand_resources
        return bool(self.offer.resources or self._served.plugins or former)

    async def _update(self, arrival: float) -> float | None:
        """Publishes what was decided; returns the seconds until the next call if nothing changes.

        Args:
            arrival: seconds until the next offer can be decided on; 0 for none.
        """
        self._set_services()
        await self._device_nodes.read(self._decided.cards)
        waits = [arrival or None, self._device_nodes.retry_in()]
        if self.offer.resources or self._names.known_resources:
            waits.append(await self._occupancy.ask(self.offer))
        if self._occupancy.has_answer:
            self._set_services()
            waits.append(self._publish())
            lowered, self._lowered = self._lowered, {}
            await self._names.lower_allocatable(lowered)
        waits.append(await self._names.remove_stale(self._served.plugins.keys() | self._devices.on_demand_resources))
        return min((each for each in waits if each is not None), default=None)

    def _announce(self) -> None:
        """Announces what other parts read, if it has changed."""
        taken = self.taken_devices(WHOLE_CARDS)
        entries = (self.problem, self.recent_allocations, self.topology, taken, self.held_withheld)
        (offer_before, entries_before), self._announced = self._announced, (self.in_force, entries)
        if offer_before != self.in_force:
            self._changes.notify(Fact.OFFER)
        if entries_before != entries:
            self._changes.notify(Fact.ENTRIES)

    def _set_services(self) -> None:
        """Sets the processes that must serve shares once current holders are known."""
        plans = {} if self.in_force is None else drop_cards(self.in_force.plans, self._devices.changing_devices())
        if (self._occupancy.has_answer or not plans) and plans != self._plans:
            self._plans = plans
            self._strategies.set_plans(plans)

    def _publish(self) -> float | None:
        """Writes the CDI file, then the new lists. Without the file no list changes."""
        if not self._cdi.publish(
            self._decided.cdi_devices(self._device_nodes.files),
            joint=self._calls.is_joint(),
            needed=self._calls.options.uses_cdi,
        ):
            return RETRY
        held = self._occupancy.resources & self._names.known_resources - self._devices.on_demand_resources
        wait = self._served.update(self._lists(), held)
        self._names.set_advertised(self._served.plugins.keys() | self._devices.on_demand_resources)
        return wait

    def _inputs(self) -> tuple[object, ...]:
        desired = self._settings.config.sharing
        return tuple(self._devices.gpus()), desired.name, desired.profile, frozenset(self._devices.on_demand_resources)

    def _choose(self) -> tuple[AppliedSharing, SharingProblem | None]:
        """Returns the offer of the present inputs, and why it is not the desired one."""
        return choose_offer(
            tuple(self._devices.gpus()),
            self._settings.config.sharing,
            self._settings.mig_strategy,
            before=self.in_force,
            on_demand=frozenset(self._devices.on_demand_resources),
            strategies=self._strategies.by_kind,
        )

    async def _seconds_until_change(self) -> float:
        """Lowers the Node's amounts to those of the next offer, in which cards that MPS must release first are closed.

        Cards that changed need no time: a layout closed them before (:meth:`close`), and other changes cannot wait.

        Returns:
            Seconds until the offer can change; 0 also if it need not.
        """
        before = self.in_force
        if before is None or self._inputs()[1:] == self._decided.inputs[1:]:
            return 0.0
        after, _ = self._choose()
        served, kept = ({card for each in of.plans.values() for card in each.cards} for of in (before, after))
        fenced = self._devices.fenced_devices() | self._closing.devices | (served - kept)
        return await self._names.seconds_until_cut(self._counts(after.offer, fenced))

    def _counts(self, offer: Advertisement, fenced: frozenset[str]) -> dict[str, int]:
        """The entries that kubelet counts with an offer and a fence, by resource, also of resources no longer in it."""
        former = (self._names.known_resources - self._devices.on_demand_resources) | self._served.plugins.keys()
        return count_entries(offer, self._reasons(offer, fenced), former, self._occupancy.lasting_entries())

    def _decide(self) -> None:
        """Decides on the offer. From now on, entries that are no longer in it are not allocated."""
        inputs = self._inputs()
        if inputs == self._decided.inputs:
            return
        applied, refusal = self._choose()
        cards, desired = tuple(self._devices.gpus()), self._settings.config.sharing
        self._calls.decided = DecidedOffer(inputs=inputs, cards=cards, applied=applied, refusal=refusal)
        if refusal is None:
            self._settings.config.note_applied_profile(desired.name, desired.text)
        else:
            _log.warning("%s", refusal.text)
        self._blocked = self._occupancy.blocked_entries(self.offer, self._decided.parents)
        reasons = self._reasons(self.offer, self.closed_devices())
        for name, plugin in self._served.plugins.items():
            offered = self.offer.resources.get(name) or AdvertisedResource(name=name, devices=())
            plugin.terms = self._terms(offered, find_withheld_entries(offered, reasons))

    def _lists(self) -> dict[str, tuple[StaticDevicePlugin, tuple[ListedDevice, ...]]]:
        """The list of each resource with its plugin, which allocates the same entries."""
        self._blocked = self._occupancy.blocked_entries(self.offer, self._decided.parents)
        reasons = self._reasons(self.offer, self.closed_devices())
        before, states = self._states, judge_entries(self.offer, reasons, self._occupancy.lasting_entries())
        numa = {card.uuid: card.info.numa_node for card in self._decided.cards}
        lists: dict[str, tuple[StaticDevicePlugin, tuple[ListedDevice, ...]]] = {}
        for name, offered in self.offer.resources.items():
            plugin = self._served.ensure(name)
            plugin.terms = self._terms(offered, states.refused[name])
            withheld = (((name, each.id) in states.withheld, each) for each in offered.devices)
            lists[name] = (plugin, tuple(_list_device(each, not bad, numa.get(each.gpu)) for bad, each in withheld))
        self._lowered, self._states = states.lowered_since(before), states
        return lists

    def _reasons(self, offer: Advertisement, fenced: frozenset[str]) -> WithholdingReasons:
        """Every reason to withhold entries of an offer now, with these devices fenced."""
        entries = [device for offered in offer.resources.values() for device in offered.devices]
        health = entry_health(entries, self._decided.descriptions, self._devices.faulty_gpus, self._devices.health_of)
        withheld = {entry: verdict for entry, verdict in health.items() if not verdict.healthy}
        return WithholdingReasons(
            unhealthy={entry: verdict.text for entry, verdict in withheld.items() if not verdict.by_hand},
            cordoned={entry: verdict.text for entry, verdict in withheld.items() if verdict.by_hand},
            nodes_unknown=self._device_nodes.failed if self._calls.options.uses_cdi else {},
            unreadable={card.uuid: card.info.problem for card in self._decided.cards if not card.info.readable},
            fenced=fenced,
            blocked=self._occupancy.blocked_entries(offer, self._decided.parents),
            not_ready=self._strategies.not_ready_reasons(offer),
        )

    @property
    def _decided(self) -> DecidedOffer:
        """The offer in force. Equal inputs are not decided on twice."""
        return self._calls.decided

    def closed_devices(self) -> frozenset[str]:
        """UUIDs of devices that must not be allocated: fenced ones, and GPUs that changed since the offer was made."""
        now = self._devices.gpus()
        changed = {gpu.uuid for gpu in self._decided.cards if gpu not in now}
        return self._devices.fenced_devices() | self._closing.closed | changed

    def _terms(self, offered: AdvertisedResource, refused: Mapping[str, str]) -> AllocationTerms:
        return AllocationTerms(
            offered=offered,
            refused=refused,
            options=self._calls.options,
            files=self._device_nodes.files,
            topology=self._device_nodes.topology,
            joint=len(self.offer.resources) > 1,
        )


def _list_device(entry: AdvertisedDevice, healthy: bool, numa_node: int | None) -> ListedDevice:
    return ListedDevice(id=entry.id, healthy=healthy, numa_nodes=() if numa_node is None else (numa_node,))
