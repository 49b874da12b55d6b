"""What a node offers of its static cards: whole, shared, or cut by a layout; kept as the cards and the wish are.

Whatever changes, the same is worked out again from the start: what is offered (``offering.py``), which entries must not
be given out now, and so what each resource's plugin lists and gives (``plugin.py``, ``serving.py``). An entry is out
while its device is unfit or fenced off, while a pod holds the device under another name (``occupancy.py``), while its
MPS daemon is not ready, and while its device nodes are not known.

Order of a change: what is no longer offered is no longer given, at once; then kubelet is asked who holds what; then the
CDI file has the new devices; then the new lists go out. Nothing is offered before kubelet has said once who holds what.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.desired_config import DesiredSharing
from tessera.agent.base.mps_plan import drop_cards
from tessera.agent.inventory.device_health import DeviceHealth, DeviceScope, entry_health
from tessera.agent.inventory.device_users import DeviceUsers
from tessera.agent.inventory.gpu_inventory import GpuState, sharing_gpus
from tessera.agent.sharing.allocate_response import AllocateOptions, unique
from tessera.agent.sharing.cdi_specs import CdiDevice, CdiFile
from tessera.agent.sharing.cdi_writer import CdiPublisher
from tessera.agent.sharing.conflicts import EntryKey
from tessera.agent.sharing.device_nodes import RETRY, DeviceNodes
from tessera.agent.sharing.device_plugin import AllocationTerms, StaticDevicePlugin
from tessera.agent.sharing.mps_seam import MpsDaemonPool
from tessera.agent.sharing.occupancy import DeviceOccupancy
from tessera.agent.sharing.offer import AppliedSharing, SharingProblem, choose_offer
from tessera.agent.sharing.refusals import WithholdingReasons, withheld_entries
from tessera.agent.sharing.served_resources import ServedResources
from tessera.agent.sharing.stale_capacity import overcounted_resources
from tessera.agent.sharing.withdrawn_resources import AdvertisedNames
from tessera.api.sharing.devices import Device, Gpu, Offer, Offered
from tessera.api.sharing.profile import MigStrategy
from tessera.clock import Clock
from tessera.kube.resources import Node
from tessera.kubelet.interfaces import Device as ListedDevice
from tessera.kubelet.interfaces import Kubelet
from tessera.nvml.asynchronous.async_nvml import AsyncNvml

_log = logging.getLogger(__name__)


class ResourceAdvertiser:
    """Offers the static cards to kubelet.

    Args:
        kubelet: the node's.
        cards: the static cards as they are now.
        wish: the sharing profile to follow.
        settled: told when a wish is in force, with the profile's name and text.
        mig_strategy: the installation's; a profile's own goes before.
        verdict: what is thought of a card or MIG device.
        fenced: UUIDs of cards and MIG devices that nothing may be given of now.
        changing: those of them whose layout is about to change; MPS gives them up, since its servers hold them.
        taken: resources that the slicer serves on this node.
        mps: the MPS daemons.
        hardware: asked for device nodes and links when a card or MIG device comes, goes or gets another number.
        holders: who holds what.
        options: how containers learn of their devices; a profile's flags go before.
        cdi_dir: the folder that the container runtime reads.
        names_file: keeps which resources were ever offered, by the slicer too.
        given_file: keeps what was given to containers that kubelet has not told of.
        node: the Node object as last seen.
        forget: removes resources from the Node's capacity and allocatable; raises ApiError or ConnectionError.
        changes: says that something may have changed; woken when kubelet has taken a list.
        clock: the time.
    """

    def __init__(
        self,
        *,
        kubelet: Kubelet,
        cards: Callable[[], Sequence[GpuState]],
        wish: Callable[[], DesiredSharing],
        settled: Callable[[str, str], None],
        mig_strategy: MigStrategy,
        verdict: Callable[[DeviceScope], DeviceHealth],
        fenced: Callable[[], frozenset[str]],
        changing: Callable[[], frozenset[str]],
        taken: Callable[[], frozenset[str]],
        mps: MpsDaemonPool,
        hardware: AsyncNvml,
        holders: DeviceUsers,
        options: AllocateOptions,
        cdi_dir: Path,
        names_file: Path,
        given_file: Path,
        node: Callable[[], Node | None],
        forget: Callable[[Sequence[str]], Awaitable[None]],
        changes: ChangeNotifier,
        clock: Clock,
    ) -> None:
        self._kubelet = kubelet
        self._cards = cards
        self._wish = wish
        self._settled = settled
        self._strategy = mig_strategy
        self._verdict = verdict
        self._fenced = fenced
        self._changing = changing
        self._slicers = taken
        self._mps = mps
        self._occupancy = DeviceOccupancy(holders, changes.notify, given_file, clock)
        self._options = options
        self._cdi = CdiFile(cdi_dir)
        self._definitions = CdiPublisher(
            self._cdi,
            self._occupancy,
            joint=self._ever_joint,
            needed=lambda: self._options_now.uses_cdi,
            changes=changes,
        )
        self._readings = DeviceNodes(hardware, clock)
        self._node = node
        self._names = AdvertisedNames(names_file, node=node, forget=forget, clock=clock)
        self._changes = changes
        self._clock = clock

        self._made_of: tuple[object, ...] | None = None
        self._gpus: Sequence[Gpu] = ()
        self._stock: Sequence[GpuState] = ()
        self._in_force: AppliedSharing | None = None
        self._refusal: SharingProblem | None = None
        self._blocked: Mapping[EntryKey, str] = {}
        self._unfit: Mapping[EntryKey, str] = {}
        self._told: object = None
        self._serving: ServedResources | None = None

    # What others may know ---------------------------------------------------------------------------------------

    @property
    def in_force(self) -> AppliedSharing | None:
        """What is offered and by which profile; ``None`` before that was worked out once."""
        return self._in_force

    @property
    def offer(self) -> Offer:
        """What is offered, whether it is fit to be given out or not."""
        return Offer(resources={}) if self._in_force is None else self._in_force.offer

    @property
    def profile(self) -> str:
        """Name of the profile in force; empty for none."""
        return "" if self._in_force is None else self._in_force.name

    @property
    def unfit(self) -> Mapping[EntryKey, str]:
        """The entries that are not given out now, by resource and id, each with the reason."""
        return self._unfit

    def occupied(self, card: str) -> str:
        """Which pod holds a card or a part of it, or that nobody has said yet; empty if none does."""
        if not self._occupancy.known:
            return "kubelet has not said yet which pods hold devices"
        return self._occupancy.holder(card, self._parents())

    @property
    def serves(self) -> bool:
        """Whether kubelet has taken the newest list of everything that is served, which may be nothing."""
        if self._serving is None or self._in_force is None:
            return False
        plugins = self._serving.plugins
        if self.offer.resources and not self._occupancy.known:
            return False
        return plugins.keys() >= self.offer.resources.keys() and all(each.listed for each in plugins.values())

    @property
    def lately_given(self) -> frozenset[str]:
        """UUIDs of devices given out so lately that kubelet may not tell who holds them."""
        return self._occupancy.lately_given

    @property
    def overcounted(self) -> tuple[str, ...]:
        """The resources of which the Node still counts entries that are not given out any more."""
        node = self._node()
        if node is None:
            return ()
        former = self._names.known - self._slicers()
        return overcounted_resources(node.status.allocatable, self.offer, self._grounds(), former)

    @property
    def problem(self) -> SharingProblem | None:
        """Why the node does not offer what it was asked for; ``None`` if it does."""
        if self._refusal is not None:
            return self._refusal
        if self._occupancy.silent is not None:
            return SharingProblem("KubeletSilent", self._occupancy.silent)
        if self._definitions.failed is not None:
            return SharingProblem("CdiFailed", self._definitions.failed)
        if self._serving is not None and self._serving.refused:
            return SharingProblem("ResourceRefused", "; ".join(self._serving.refused.values()))
        if self._options_now.uses_cdi and self._readings.failed:
            return SharingProblem("NvmlFailed", "; ".join(unique(self._readings.failed.values())))
        if waiting := unique(self._blocked.values()):
            return SharingProblem("CardsInUse", f"not given out until its pods have ended: {'; '.join(waiting)}")
        return None

    # The loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Offers until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._serving = serving = ServedResources(
                self._kubelet, plugin=self._plugin, told=self._changes.notify, group=group, clock=self._clock
            )
            while True:
                seen = self._changes.count
                await self._changes.wait(seen, await self._look(serving))

    async def _look(self, serving: ServedResources) -> float | None:
        """Brings everything about; returns when to look again in any case."""
        self._decide(serving)
        self._want_daemons()
        await self._readings.read(self._stock)
        waits = [self._readings.retry_in()]
        if self.offer.resources or self._names.known:
            waits.append(await self._occupancy.ask(self.offer))
        if self._occupancy.known:
            self._want_daemons()
            waits.append(self._put_out(serving))
        waits.append(await self._names.remove_stale(serving.plugins.keys() | self._slicers()))
        told, self._told = self._told, (self.problem, self.offer, self.lately_given)
        if told != self._told:
            self._changes.notify()
        return min((each for each in waits if each is not None), default=None)

    def _want_daemons(self) -> None:
        """Says which MPS daemons there shall be, as soon as it is known whom they would meet on the cards."""
        plans = {} if self._in_force is None else drop_cards(self._in_force.plans, self._changing())
        if self._occupancy.known or not plans:
            self._mps.set_plans(plans)

    def _put_out(self, serving: ServedResources) -> float | None:
        """Defines the devices and lists them; what cannot be defined is not listed anew."""
        if not self._definitions.publish(self._devices()):
            return RETRY
        held = self._occupancy.resources & self._names.known - self._slicers()
        wait = serving.show(self._lists(serving), held)
        self._names.offered(serving.plugins.keys() | self._slicers())
        return wait

    def _decide(self, serving: ServedResources) -> None:
        """Works out the offer; what is not in it any more is not given out from now on."""
        cards, wish, taken = tuple(self._cards()), self._wish(), self._slicers()
        made_of = (cards, wish.name, wish.profile, taken)
        if made_of == self._made_of:
            return
        self._made_of, self._stock, self._gpus = made_of, cards, sharing_gpus(cards)
        before = self._in_force
        self._in_force, self._refusal = choose_offer(cards, wish, self._strategy, before=before, taken=taken)
        if self._refusal is None:
            self._settled(wish.name, wish.text)
        else:
            _log.warning("%s", self._refusal.text)
        self._blocked = self._occupancy.blocked(self.offer, self._parents())
        for name, plugin in serving.plugins.items():
            offered = self.offer.resources.get(name) or Offered(name=name, devices=())
            plugin.terms = self._terms(offered, withheld_entries(offered, self._grounds()))

    def _lists(self, serving: ServedResources) -> dict[str, tuple[StaticDevicePlugin, tuple[ListedDevice, ...]]]:
        """What each resource lists; its plugin gives out the same."""
        self._blocked = self._occupancy.blocked(self.offer, self._parents())
        grounds = self._grounds()
        numa = {card.uuid: card.info.numa_node for card in self._stock}
        unfit: dict[EntryKey, str] = {}
        lists: dict[str, tuple[StaticDevicePlugin, tuple[ListedDevice, ...]]] = {}
        for name, offered in self.offer.resources.items():
            refused = withheld_entries(offered, grounds)
            unfit |= {(name, entry): why for entry, why in refused.items()}
            plugin = serving.ensure(name)
            plugin.terms = self._terms(offered, refused)
            lists[name] = (plugin, tuple(_listed(each, refused, numa.get(each.gpu)) for each in offered.devices))
        self._unfit = unfit
        return lists

    def _grounds(self) -> WithholdingReasons:
        """What speaks against giving out entries now."""
        entries = [device for offered in self.offer.resources.values() for device in offered.devices]
        judged = entry_health(entries, self._gpus, self._verdict)
        plans = {} if self._in_force is None else self._in_force.plans
        return WithholdingReasons(
            unhealthy={entry: verdict.text for entry, verdict in judged.items() if not verdict.healthy},
            unreadable=self._readings.failed if self._options_now.uses_cdi else {},
            lost=frozenset(card.uuid for card in self._stock if card.info.lost),
            fenced=self._closed(),
            blocked=self._blocked,
            waiting={
                (name, card): f"its MPS daemon is not ready: {self._mps.problem(name)}"
                for name, plan in plans.items()
                for card in plan.cards
                if not self._mps.ready(name, card)
            },
        )

    # Small parts ------------------------------------------------------------------------------------------------

    @property
    def _options_now(self) -> AllocateOptions:
        return self._options if self._in_force is None else self._options.with_flags(self._in_force.profile.flags)

    def _plugin(self, resource: str) -> StaticDevicePlugin:
        return StaticDevicePlugin(
            resource,
            fenced=self._closed,
            edits=self._mps.container_edits,
            cdi=self._cdi,
            given=self._occupancy.given,
            starting=self._starting,
            listed=self._changes.notify,
        )

    async def _starting(self, resource: str, ids: Sequence[str]) -> None:
        self._occupancy.started()
        await self._definitions.starting(resource, ids)

    def _terms(self, offered: Offered, refused: Mapping[str, str]) -> AllocationTerms:
        return AllocationTerms(
            offered=offered,
            refused=refused,
            options=self._options_now,
            files=self._readings.files,
            topology=self._readings.topology,
            joint=len(self.offer.resources) > 1,
        )

    def _closed(self) -> frozenset[str]:
        """UUIDs of what nothing may be given of now: what is fenced, and cards that are not as the offer has them."""
        now = self._cards()
        return self._fenced() | {card.uuid for card in self._stock if card not in now}

    def _ever_joint(self) -> bool:
        """Whether a container of this node may have been given devices of several resources."""
        return len(self._names.known) > 1

    def _parents(self) -> dict[str, str]:
        """The card of each MIG device."""
        return {mig.uuid: gpu.uuid for gpu in self._gpus for mig in gpu.mig_devices}

    def _devices(self) -> list[CdiDevice]:
        """Every card and MIG device whose nodes are known."""
        found = []
        for gpu in self._gpus:
            found.append((gpu.uuid, str(gpu.index)))
            found += [(mig.uuid, f"{gpu.index}:{mig.index}") for mig in gpu.mig_devices]
        files = self._readings.files
        return [CdiDevice(uuid=uuid, index=index, files=files[uuid]) for uuid, index in found if uuid in files]


def _listed(entry: Device, refused: Mapping[str, str], numa_node: int | None) -> ListedDevice:
    return ListedDevice(
        id=entry.id, healthy=entry.id not in refused, numa_nodes=() if numa_node is None else (numa_node,)
    )
