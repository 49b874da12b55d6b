"""What a node offers of its static cards: whole, shared, or cut by a layout; kept as the cards and the wish are.

Whatever changes, the same is worked out again from the start: what is offered (``offering.py``), which entries must not
be given out now, and so what each resource's plugin lists and gives (``plugin.py``, ``serving.py``). An entry is out
while its device is unfit or fenced, while a pod holds the device under another name (``exclusion.py``), while its MPS
daemon is not ready, and while its device nodes are not known.

Order of a change: what is no longer offered is no longer given, at once; then kubelet is asked who holds what; then the
CDI file has the new devices; then the new lists go out. Kubelet's answer may lack a container that was given something
a moment ago, so what was given in the last :data:`ADMISSION` seconds counts as held.

Nothing is offered before kubelet has said once who holds what. It is asked when the offer or the node's pods change,
not at every change.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from tessera.agent.health.marks import Scope, Verdict
from tessera.agent.mps.plan import MpsPlan
from tessera.agent.settings.wishes import SharingWish
from tessera.agent.sharing.answers import AnswerOptions, ClientEdits, unique
from tessera.agent.sharing.cdi_specs import CdiDevice, CdiSpecs
from tessera.agent.sharing.exclusion import Entry, Held, blocked, held_by
from tessera.agent.sharing.holders import Holder, Holders
from tessera.agent.sharing.offering import InForce, Objection, offering
from tessera.agent.sharing.plugin import SharedPlugin, Terms
from tessera.agent.sharing.readings import Readings
from tessera.agent.sharing.serving import Serving
from tessera.agent.sharing.stale import GRACE, OfferedNames, stale_resources
from tessera.agent.stock import StockCard, gpus_of
from tessera.agent.wakeup import Changes
from tessera.api.names import PodUid
from tessera.api.sharing.config import MigStrategy, SharingKind
from tessera.api.sharing.devices import Device, Gpu, Offer, Offered, device_of
from tessera.clock import Clock
from tessera.kube.errors import ApiError
from tessera.kube.resources import Node
from tessera.kubelet.seam import Device as ListedDevice
from tessera.kubelet.seam import Kubelet
from tessera.nvml.worker import AsyncNvml

_log = logging.getLogger(__name__)

#: Seconds from Allocate until the container is certainly among those that kubelet lists, and its pod among the live.
ADMISSION = 15.0
#: Seconds before a kubelet that did not answer is asked again.
ASK_AGAIN = 0.5
#: Seconds before device nodes that could not be read, or a name that could not be removed, are tried again.
RETRY = 30.0


class MpsSeam(Protocol):
    """The MPS daemons as the shelf needs them; see :class:`tessera.agent.mps.daemons.MpsDaemons`."""

    def want(self, plans: Mapping[str, MpsPlan], /) -> None:
        """Says which daemons shall run, by resource."""
        ...

    def ready(self, resource: str, /) -> bool:
        """Whether the daemon of a resource serves clients."""
        ...

    def why(self, resource: str, /) -> str:
        """Why it does not."""
        ...

    def edits(self, resource: str, /) -> ClientEdits:
        """What its clients need."""
        ...


class Given(msgspec.Struct, frozen=True):
    """Entries of one resource that a container was given, and when by the monotonic clock."""

    resource: str
    ids: tuple[str, ...]
    since: float


class Shelf:
    """Offers the static cards to kubelet.

    Args:
        kubelet: the node's.
        cards: the static cards as they are now.
        wish: the sharing profile to follow.
        settled: told when a wish is in force, with the profile's name and text.
        mig_strategy: the installation's; a profile's own goes before.
        verdict: what is thought of a card or MIG device.
        fenced: UUIDs of cards and MIG devices that nothing may be given of now.
        taken: resources that the slicer serves on this node.
        mps: the MPS daemons.
        hardware: asked for device nodes and links when a card or MIG device comes, goes or gets another number.
        holders: who holds what.
        options: how containers learn of their devices; a profile's flags go before.
        cdi_dir: the folder that the container runtime reads.
        names_file: keeps which resources were ever offered.
        node: the Node object as last seen.
        forget: removes resources from the Node's capacity and allocatable; raises ApiError or ConnectionError.
        changes: says that something may have changed; woken when kubelet has taken a list.
        clock: the time.
    """

    def __init__(
        self,
        *,
        kubelet: Kubelet,
        cards: Callable[[], Sequence[StockCard]],
        wish: Callable[[], SharingWish],
        settled: Callable[[str, str], None],
        mig_strategy: MigStrategy,
        verdict: Callable[[Scope], Verdict],
        fenced: Callable[[], frozenset[str]],
        taken: Callable[[], frozenset[str]],
        mps: MpsSeam,
        hardware: AsyncNvml,
        holders: Holders,
        options: AnswerOptions,
        cdi_dir: Path,
        names_file: Path,
        node: Callable[[], Node | None],
        forget: Callable[[Sequence[str]], Awaitable[None]],
        changes: Changes,
        clock: Clock,
    ) -> None:
        self._kubelet = kubelet
        self._cards = cards
        self._wish = wish
        self._settled = settled
        self._strategy = mig_strategy
        self._verdict = verdict
        self._fenced = fenced
        self._slicers = taken
        self._mps = mps
        self._holders = holders
        self._options = options
        self._cdi = CdiSpecs(cdi_dir)
        self._readings = Readings(hardware, clock)
        self._names = OfferedNames(names_file)
        self._node = node
        self._forget = forget
        self._changes = changes
        self._clock = clock

        self._made_of: tuple[object, ...] | None = None
        self._gpus: Sequence[Gpu] = ()
        self._stock: Sequence[StockCard] = ()
        self._in_force: InForce | None = None
        self._refusal: Objection | None = None
        self._asked_about: tuple[frozenset[PodUid], Offer] | None = None
        self._held: Mapping[str, tuple[Holder, ...]] | None = None
        self._silent: str | None = None
        self._given: list[Given] = []
        self._blocked: Mapping[Entry, str] = {}
        self._unfit: Mapping[Entry, str] = {}
        self._serving: Serving | None = None
        self._forget_at = 0.0

    # What others may know ---------------------------------------------------------------------------------------

    @property
    def offer(self) -> Offer:
        """What is offered, whether it is fit to be given out or not."""
        return Offer(resources={}) if self._in_force is None else self._in_force.offer

    @property
    def profile(self) -> str:
        """Name of the profile in force; empty for none."""
        return "" if self._in_force is None else self._in_force.name

    @property
    def entries_by_uuid(self) -> Mapping[str, tuple[Device, ...]]:
        """The entries of each card and MIG device, by its UUID."""
        found: dict[str, list[Device]] = {}
        for offered in self.offer.resources.values():
            for device in offered.devices:
                found.setdefault(device.uuid, []).append(device)
        return {uuid: tuple(devices) for uuid, devices in found.items()}

    @property
    def unfit(self) -> Mapping[Entry, str]:
        """The entries that are not given out now, by resource and id, each with the reason."""
        return self._unfit

    @property
    def problem(self) -> Objection | None:
        """Why the node does not offer what it was asked for; ``None`` if it does."""
        if self._refusal is not None:
            return self._refusal
        if self._silent is not None:
            return Objection("KubeletSilent", self._silent)
        if self._serving is not None and self._serving.refused:
            return Objection("ResourceRefused", "; ".join(self._serving.refused.values()))
        if self._options_now.uses_cdi and self._readings.failed:
            return Objection("NvmlFailed", "; ".join(unique(self._readings.failed.values())))
        if waiting := unique(self._blocked.values()):
            return Objection("CardsInUse", f"not given out until its pods have ended: {'; '.join(waiting)}")
        return None

    # The loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Offers until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._serving = serving = Serving(self._kubelet, plugin=self._plugin, group=group, clock=self._clock)
            while True:
                seen = self._changes.count
                await self._changes.wait(seen, await self._look(serving))

    async def _look(self, serving: Serving) -> float | None:
        """Brings everything about; returns when to look again in any case."""
        before = (self.problem, self.offer)
        self._decide(serving)
        await self._readings.read(self._stock)
        waits = [await self._ask(), self._readings.retry_in()]
        if self._held is not None:
            self._define()
            waits.append(serving.show(self._lists(serving)))
        waits += [await self._remove_stale(), self._given_until()]
        if (self.problem, self.offer) != before:
            self._changes.notify()
        return min((each for each in waits if each is not None), default=None)

    def _decide(self, serving: Serving) -> None:
        """Works out the offer; what is not in it any more is not given out from now on."""
        cards, wish, taken = tuple(self._cards()), self._wish(), self._slicers()
        made_of = (cards, wish.name, wish.profile, taken)
        if made_of == self._made_of:
            return
        self._made_of, self._stock, self._gpus = made_of, cards, gpus_of(cards)
        before = self._in_force
        self._in_force, self._refusal = offering(cards, wish, self._strategy, before=before, taken=taken)
        if self._refusal is None:
            self._settled(wish.name, wish.text)
        else:
            _log.warning("%s", self._refusal.text)
        if before is None or self._in_force.plans != before.plans:
            self._mps.want(self._in_force.plans)
        for name, plugin in serving.plugins.items():
            offered = self.offer.resources.get(name) or Offered(name=name, devices=())
            plugin.terms = self._terms(offered, plugin.terms.refused)
        self._names.offered(self.offer.resources.keys(), self._clock.now())

    async def _ask(self) -> float | None:
        """Learns who holds what, if that may be news; returns when to ask again if there was no answer."""
        about = (self._holders.live(), self.offer)
        now = self._clock.monotonic()
        settled = [each for each in self._given if now - each.since >= ADMISSION]
        if about == self._asked_about and not settled:
            return None
        try:
            self._held = await self._holders.now()
        except ConnectionError as error:
            self._silent = f"kubelet does not say which pods hold devices, so that no change is made: {error}"
            return ASK_AGAIN
        self._asked_about, self._silent = about, None
        self._given = [each for each in self._given if each not in settled]
        return None

    def _define(self) -> None:
        """Puts the devices into the CDI file."""
        devices = [
            CdiDevice(uuid=uuid, index=index, files=self._readings.files.get(uuid, ()))
            for uuid, index in _devices(self._gpus)
            if uuid not in self._readings.failed
        ]
        self._cdi.publish(devices, self._sets())

    def _lists(self, serving: Serving) -> dict[str, tuple[SharedPlugin, tuple[ListedDevice, ...]]]:
        """What each resource lists; its plugin gives out the same."""
        self._blocked = blocked(self.offer, [*held_by(self._held or {}), *self._lately_given()], self._parents())
        judged = self._judged()
        numa = {card.uuid: card.info.numa_node for card in self._stock}
        unfit: dict[Entry, str] = {}
        lists: dict[str, tuple[SharedPlugin, tuple[ListedDevice, ...]]] = {}
        for name, offered in self.offer.resources.items():
            refused = self._refused(offered, judged)
            unfit |= {(name, entry): why for entry, why in refused.items()}
            plugin = serving.ensure(name)
            plugin.terms = self._terms(offered, refused)
            lists[name] = (plugin, tuple(_listed(each, refused, numa.get(each.gpu)) for each in offered.devices))
        self._unfit = unfit
        return lists

    def _refused(self, offered: Offered, judged: Mapping[str, str]) -> dict[str, str]:
        """The entries of one resource that must not be given out now."""
        by_mps = ""
        if any(each.kind is SharingKind.MPS for each in offered.devices) and not self._mps.ready(offered.name):
            by_mps = f"its MPS daemon is not ready: {self._mps.why(offered.name)}"
        found: dict[str, str] = {}
        for each in offered.devices:
            why = judged.get(each.uuid) or self._blocked.get((offered.name, each.id))
            why = why or (by_mps if each.kind is SharingKind.MPS else "")
            if why:
                found[each.id] = why
        return found

    def _judged(self) -> dict[str, str]:
        """Why a card or MIG device is not to be given out, by its UUID; those that may be are missing."""
        fenced, found = self._fenced(), dict(self._readings.failed) if self._options_now.uses_cdi else {}
        lost = {card.uuid for card in self._stock if card.info.lost}
        for gpu in self._gpus:
            scopes = {gpu.uuid: Scope(gpu.uuid)}
            scopes |= {mig.uuid: Scope(gpu.uuid, mig.gi_id, mig.ci_id) for mig in gpu.mig_devices}
            for uuid, scope in scopes.items():
                verdict = self._verdict(scope)
                if not verdict.healthy:
                    found[uuid] = verdict.text
                elif gpu.uuid in lost:
                    found[uuid] = "the card fell off the bus; drain the node and reboot it"
                elif not fenced.isdisjoint({uuid, gpu.uuid}):
                    found[uuid] = "it is kept free, since its card's MIG layout is about to change"
        return found

    # What was given lately --------------------------------------------------------------------------------------

    def _note_given(self, resource: str, ids: Sequence[str]) -> None:
        self._given.append(Given(resource, tuple(ids), self._clock.monotonic()))
        self._changes.notify()

    def _lately_given(self) -> list[Held]:
        return [
            Held(resource=each.resource, id=entry, who="a pod that is being admitted")
            for each in self._given
            for entry in each.ids
        ]

    def _given_until(self) -> float | None:
        """When kubelet is to be asked about what was given lately, in seconds; ``None`` if nothing was."""
        oldest = min((each.since for each in self._given), default=None)
        return None if oldest is None else max(0.0, oldest + ADMISSION - self._clock.monotonic())

    # Names that kubelet does not forget -------------------------------------------------------------------------

    async def _remove_stale(self) -> float | None:
        """Removes what was offered once from the Node; returns when there may be more to remove."""
        node, now = self._node(), self._clock.now()
        former = {
            name: since for name, since in self._names.former.items() if node and node.status.capacity.get(name) == "0"
        }
        if node is None or not former:
            return None
        served = self.offer.resources.keys() | self._slicers()
        names = stale_resources(node, former, served, now)
        if names and self._clock.monotonic() >= self._forget_at:
            self._forget_at = self._clock.monotonic() + RETRY
            try:
                await self._forget(names)
            except (ApiError, ConnectionError, TimeoutError) as error:
                _log.warning("%s cannot be removed from the node, again in %.0f s: %s", ", ".join(names), RETRY, error)
                return RETRY
            self._names.removed(names, now)
        return min(
            (max(RETRY, since + GRACE - now) for name, since in former.items() if name not in served), default=None
        )

    # Small parts ------------------------------------------------------------------------------------------------

    @property
    def _options_now(self) -> AnswerOptions:
        return self._options if self._in_force is None else self._options.with_flags(self._in_force.profile.flags)

    def _plugin(self, resource: str) -> SharedPlugin:
        return SharedPlugin(
            resource, edits=self._mps.edits, cdi=self._cdi, given=self._note_given, listed=self._changes.notify
        )

    def _terms(self, offered: Offered, refused: Mapping[str, str]) -> Terms:
        return Terms(
            offered=offered,
            refused=refused,
            options=self._options_now,
            files=self._readings.files,
            topology=self._readings.topology,
        )

    def _parents(self) -> dict[str, str]:
        """The card of each MIG device."""
        return {mig.uuid: gpu.uuid for gpu in self._gpus for mig in gpu.mig_devices}

    def _sets(self) -> list[frozenset[str]]:
        """Devices that a container has together."""
        found: dict[tuple[str, ...], set[str]] = {}
        for device, holders in (self._held or {}).items():
            for each in holders:
                found.setdefault((each.pod, each.container, each.resource), set()).add(device)
        return [frozenset(each) for each in found.values()] + [
            frozenset(map(device_of, each.ids)) for each in self._given
        ]


def _devices(gpus: Sequence[Gpu]) -> Iterator[tuple[str, str]]:
    """UUID and index of every card and MIG device."""
    for gpu in gpus:
        yield gpu.uuid, str(gpu.index)
        for mig in gpu.mig_devices:
            yield mig.uuid, f"{gpu.index}:{mig.index}"


def _listed(entry: Device, refused: Mapping[str, str], numa_node: int | None) -> ListedDevice:
    return ListedDevice(
        id=entry.id, healthy=entry.id not in refused, numa_nodes=() if numa_node is None else (numa_node,)
    )
