"""Prepares ResourceClaims: gives the slices that were promised to a claim's pod to the containers of the claim.

The controller promises slices to a pod that asks by claims as to one that asks by limits, in the node's Instaslice
object; then it writes ``status.allocation``, which names the same places. So the owner of the slices is the pod, and
:mod:`tessera.agent.slices.state_machine` makes and destroys them by the same rules. To that machine a pod lives while a
claim that its promise serves is prepared.

Rules:

1.  The driver is the last line of defence, since the API server checks nothing of an allocation: a device is handed out
    only if the promise to a pod that may use the claim has it, and nobody else got it
    (:mod:`tessera.claims.agent.claim_promises`). Neither a tenant's allocation nor the stock allocator's has a promise.
2.  Prepare waits for a slice that is being made, or that its former owner still leaves; kubelet tries a failed prepare
    again only after a minute or more.
3.  What was answered is on disk before the answer, and a claim that is prepared gets the same answer again.
4.  Unprepare of an unknown claim succeeds. The slices are destroyed once the promise is gone, no claim that it serves
    is prepared, and no process uses them: the next pod that shares the claim may come first.
5.  A prepared claim has a CDI file exactly while it has its slices (:mod:`tessera.claims.agent.claim_files`).
6.  A claim with admin access takes nothing from others, so it needs no promise: it gets the nodes of whole cards.
7.  The claim has an event of what was prepared, or why it was not; kubelet's repeats of a call add none.
8.  A prepared claim that is neither promised nor on the API server any more is given back without kubelet, which may
    have lost its own note of it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.settings import ServicePlan
from tessera.agent.base.wake_ups import Fact
from tessera.agent.inventory.sliceable_gpus import SliceableGpu, SliceableGpus, SlicePosition
from tessera.agent.slices.slice_table import SliceJournalFile
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.names import CLAIMED_CARD, PodUid
from tessera.claims.agent.claim_files import ClaimCdiFolder, ClaimFiles, refusing, usable_slice
from tessera.claims.agent.claim_promises import ClaimPromises
from tessera.claims.agent.prepared_claims import ClaimDaemons, PreparedClaim, PreparedClaims, plan_daemon, plan_shares
from tessera.dra.claims import RESOURCE_CLAIMS, AllocatedDevice, ResourceClaim
from tessera.dra.node_devices import partition_name, pool_names, share_id, shared_name, whole_name
from tessera.dra.opaque_configs import ConfigRefused, DeviceSettings, check_configs, check_share, settings_of
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.event_recorder import make_reference
from tessera.kubelet.interfaces import ClaimDeviceHealth, ClaimRef, HandedOverError, PluginError, PreparedDevice
from tessera.mig.geometry import Profile
from tessera.mig.names import CLAIMED_SHARE
from tessera.nvml.interface import GpuInfo
from tessera.text import list_names

_log = logging.getLogger(__name__)

#: Seconds for all claims of a pod; kubelet waits 45 (``DefaultPluginClientTimeout``).
PREPARE_TIMEOUT = 40.0
#: Seconds between looks for prepared claims that were deleted; at the second one they are given back. Kubelet, if it
#: still knows them, unprepares them within its period of 60 s once their containers have ended.
GONE_CHECK = 300.0


class ClaimDriver:
    """See :class:`tessera.kubelet.interfaces.ClaimPlugin`.

    Args:
        runtime: options, API server, clock and change notifier of this agent.
        driver_name: the driver.
        cards: the cards of which devices are published.
        machine: the slices and their owners.
        journal: written to disk before a container gets its slices.
        prepared: the prepared claims.
        daemons: the MPS daemons of claims.
        is_withheld: true for a card, by UUID, of which nothing may be given out because of its health.

    Attributes:
        leaves: Tessera leaves the node: claims are only given back.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        driver_name: str,
        *,
        cards: Callable[[], SliceableGpus],
        machine: SliceStateMachine,
        journal: SliceJournalFile,
        prepared: PreparedClaims,
        daemons: ClaimDaemons,
        is_withheld: Callable[[str], bool],
    ) -> None:
        self.driver_name = driver_name
        self._client = runtime.client
        self._clock = runtime.clock
        self._events = runtime.events
        self._node_name = runtime.options.node_name
        self._changes = runtime.changes.about(Fact.SLICES)
        self._health_changes = runtime.changes.about(Fact.HEALTH | Fact.SLICES)
        self._pools = pool_names(runtime.options.node_name)
        self._cards = cards
        #: The positions by the names of their devices, or ids of shares, of the cards as they were when last named.
        self._named: tuple[SliceableGpus, Mapping[str, SlicePosition]] = (SliceableGpus(), {})
        self._daemons = daemons
        self._slices = machine.table
        self._prepared = prepared
        self._is_withheld = is_withheld
        self._cdi = ClaimCdiFolder(runtime.options.cdi_dir, driver_name)
        self._files = ClaimFiles(
            runtime, self._cdi, machine=machine, journal=journal, prepared=prepared, daemons=daemons
        )
        self._promises = ClaimPromises(runtime, machine, prepared)
        self.leaves = False

    def adopt(self) -> None:
        """Tells the machine the claims that are prepared; before it decides anything."""
        self._promises.adopt()

    async def restore(self) -> None:
        """Writes the CDI files of all prepared claims whose slices exist; before kubelet finds the driver."""
        await self._files.restore()

    async def run(self) -> None:
        """Keeps rules 5 and 8 until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._files.run())
            group.create_task(self._forget_released())
            group.create_task(self._give_back_deleted())

    async def _forget_released(self) -> None:
        while True:
            count = self._changes.count
            try:
                self._promises.forget()
            except PluginError as error:
                _log.warning("%s", error)
            await self._changes.wait(count)

    async def _give_back_deleted(self) -> None:
        before: set[str] = set()
        while True:
            await self._clock.sleep(GONE_CHECK)
            promises = self._slices.promises
            claims = [each for each in self._prepared.items() if self._prepared.promise(each[0]) not in promises]
            gone = {uid: claim for uid, claim in claims if await self._is_deleted(uid, claim)}
            for uid in gone.keys() & before:
                _log.warning("claim %s/%s was deleted and is given back", gone[uid].namespace, gone[uid].name)
                with suppress(PluginError):  # tried again
                    await self.unprepare(ClaimRef(gone[uid].namespace, gone[uid].name, uid))
            before = set(gone)

    async def _is_deleted(self, uid: str, claim: PreparedClaim) -> bool:
        try:
            found = await self._client.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        except NotFound:
            return True
        except (ApiError, ConnectionError, TimeoutError, ValueError):
            return False
        return found.metadata.uid != uid

    @property
    def has_prepared(self) -> bool:
        """True if any claim is prepared, or about to be."""
        return bool(self._prepared.items() or self._files.locks)

    async def prepare(self, claim: ClaimRef) -> Sequence[PreparedDevice]:
        """See :meth:`.ClaimPlugin.prepare`."""
        with self._reporting(claim, "ClaimNotPrepared"):
            return await self._prepare(claim)

    @contextmanager
    def _reporting(self, claim: ClaimRef, reason: str) -> Iterator[None]:
        """Reports a call that fails on its claim: kubelet shows it on the pod only."""
        try:
            yield
        except HandedOverError:
            raise  # the next instance answers
        except PluginError as error:
            self._report(claim, reason, str(error), "Warning")
            raise

    def _report(self, claim: ClaimRef, reason: str, text: str, kind: Literal["Normal", "Warning"]) -> None:
        about = make_reference(RESOURCE_CLAIMS, claim.name, claim.namespace, claim.uid)
        self._events.record(about, reason, text, type=kind)

    async def _prepare(self, claim: ClaimRef) -> Sequence[PreparedDevice]:
        if self.leaves:
            raise PluginError(f"Tessera leaves node {self._node_name}, and prepares no claim there any more")
        began = self._clock.monotonic()
        deadline = began + PREPARE_TIMEOUT
        async with self._files.lock(claim.uid):
            known, pod = self._prepared.get(claim.uid), self._prepared.promise(claim.uid)
            if known is not None and pod is not None and self._holds(pod, known.slices().values()):
                with self._promises.reserve(claim.uid, pod, known.slices().values()):
                    await self._hand_out(claim.uid, pod, known, deadline)
                return known.devices
            found = await self._read(claim)
            results = self._read_results(found)
            located = await self._locate(found, results, deadline)
            daemon = self._read_configs(found, located)
            positions = {_key(each, position): position for each, position in located}
            if not positions:
                return ()
            prepared = PreparedClaim(
                namespace=claim.namespace,
                name=claim.name,
                devices=tuple(self._device(claim, *each) for each in located),
                positions={device: position.device_id for device, position in positions.items()},
                daemon=daemon,
                shared=any(each.profile == CLAIMED_SHARE for each in positions.values()),
                admin=results[0].admin_access,
            )
            if prepared.admin:
                await self._files.write(claim.uid, PodUid(""), prepared)
                with refusing("the claim cannot be noted on this node"):
                    self._prepared.add(claim.uid, prepared, None)
                self._report_prepared(claim, prepared, began)
                return prepared.devices
            pod = await self._promises.find(found, positions.values(), deadline)
            try:
                with self._promises.reserve(claim.uid, pod, positions.values()):
                    await self._hand_out(claim.uid, pod, prepared, deadline)
                    with refusing("the claim cannot be noted on this node"):
                        self._prepared.add(claim.uid, prepared, pod)
            finally:
                self._daemons.settle(claim.uid)
            self._report_prepared(claim, prepared, began)
            return prepared.devices

    def _report_prepared(self, claim: ClaimRef, prepared: PreparedClaim, began: float) -> None:
        names = list_names(sorted({each.device for each in prepared.devices}))
        seconds = self._clock.monotonic() - began
        self._report(claim, "ClaimPrepared", f"{names} of {self._node_name}, {seconds:.1f} s", "Normal")

    async def unprepare(self, claim: ClaimRef) -> None:
        """See :meth:`.ClaimPlugin.unprepare`."""
        with self._reporting(claim, "ClaimNotUnprepared"):
            await self._unprepare(claim)

    async def _unprepare(self, claim: ClaimRef) -> None:
        async with self._files.lock(claim.uid):
            with refusing("the claim cannot be taken back on this node"):
                self._files.remove(claim.uid)
                self._prepared.remove(claim.uid)
            self._daemons.update()
            self._promises.leave(claim.uid)

    async def watch_health(self) -> AsyncIterator[Sequence[ClaimDeviceHealth]]:
        """See :meth:`.ClaimPlugin.watch_health`; the devices of prepared claims, which are those that kubelet shows."""
        while True:
            before = self._health()
            yield [
                ClaimDeviceHealth(pool=pool, device=device, healthy=healthy, since=int(self._clock.now()))
                for (pool, device), healthy in before.items()
            ]
            await self._health_changes.wait_differs(self._health, before)

    def _health(self) -> dict[tuple[str, str], bool]:
        return {
            (device.pool, device.device): not self._is_withheld(position.gpu)
            for _, claim in self._prepared.items()
            for device, position in zip(claim.devices, claim.slices().values(), strict=True)
        }

    # Steps of prepare -----------------------------------------------------------------------------------------------

    async def _read(self, claim: ClaimRef) -> ResourceClaim:
        name = f"claim {claim.namespace}/{claim.name}"
        try:
            found = await self._client.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        except NotFound:
            raise PluginError(f"{name} does not exist") from None
        except (ApiError, ConnectionError, TimeoutError, ValueError) as error:
            raise PluginError(f"{name} cannot be read: {error}") from error
        if found.metadata.uid != claim.uid:
            raise PluginError(f"{name} was made anew: its UID is {found.metadata.uid}, not {claim.uid}")
        return found

    def _read_results(self, claim: ResourceClaim) -> Sequence[AllocatedDevice]:
        """What a claim's allocation gives of this node's devices."""
        name = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
        if claim.status.allocation is None:
            raise PluginError(f"{name} has no allocation: status.allocation is empty")
        results = [each for each in claim.status.allocation.devices.results if each.driver == self.driver_name]
        for each in results:
            if each.pool not in self._pools:
                own = self._pools[bool(each.share_id)]
                raise PluginError(f"{name}: device {each.device} is of pool {each.pool}; this node's is {own}")
        if any(each.admin_access for each in results):
            self._check_admin(name, claim, results)
        return results

    def _check_admin(self, name: str, claim: ResourceClaim, results: Sequence[AllocatedDevice]) -> None:
        """Refuses admin access for which the claim does not ask: an allocation alone proves nothing.

        The spec of a claim cannot change, and the API server admits one that asks for it only in namespaces with the
        label ``resource.kubernetes.io/admin-access``.
        """
        configured = claim.status.allocation is not None and bool(claim.status.allocation.devices.config)
        asking = {
            each.name for each in claim.spec.devices.requests if each.exactly is not None and each.exactly.admin_access
        }
        for each in results:
            if not each.admin_access or each.request not in asking:
                raise PluginError(f"{name}: request {each.request} does not ask for adminAccess, as others of it do")
            if self._position(each).profile != CLAIMED_CARD or configured:
                raise PluginError(f"{name}: request {each.request}: adminAccess is for whole cards without a config")

    def _read_configs(
        self, claim: ResourceClaim, located: Sequence[tuple[AllocatedDevice, SlicePosition]]
    ) -> ServicePlan | None:
        """The MPS daemon that a claim needs. Refuses what this node does not carry out: nothing is ignored."""
        name = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
        configs = claim.status.allocation.devices.config if claim.status.allocation is not None else ()
        fields = [(f"{name}: status.allocation.devices.config[{n}]", each) for n, each in enumerate(configs)]
        cards: list[tuple[GpuInfo, DeviceSettings]] = []
        shared = False
        try:
            check_configs(fields, self.driver_name)
            for each, position in located:
                kind = "mig" if position.profile not in (CLAIMED_CARD, CLAIMED_SHARE) else "gpu"
                settings = settings_of(fields, self.driver_name, each.request, kind)
                card = self._cards().gpu(position.gpu)
                if position.profile == CLAIMED_SHARE:
                    check_share(name, settings)
                    shared |= card is not None and card.shares is not None and card.shares.have_daemon
                elif card is not None:
                    cards.append((card.info, settings))
            return plan_shares(self._cards().gpus) if shared else plan_daemon(name, cards)
        except ConfigRefused as error:
            raise PluginError(str(error)) from None

    async def _locate(
        self, claim: ResourceClaim, results: Sequence[AllocatedDevice], deadline: float
    ) -> Sequence[tuple[AllocatedDevice, SlicePosition]]:
        """The positions of devices; of shares that kube-scheduler gave, those that the promise to their pod has."""
        cards = {shared_name(each.info.minor): each.uuid for each in self._cards().gpus if each.shares is not None}
        wanted = [each for each in results if self._promises.follows and each.share_id and each.device in cards]
        gpus = [cards[each.device] for each in wanted]
        found = await self._promises.find_shares(claim, gpus, deadline) if wanted else ()
        shares = {each.share_id: position for each, position in zip(wanted, found, strict=True)}
        return [(each, shares.get(each.share_id) or self._position(each)) for each in results]

    def _position(self, result: AllocatedDevice) -> SlicePosition:
        cards = self._cards()
        if self._named[0] is not cards:
            self._named = (cards, claim_devices(cards))
        position = self._named[1].get(result.share_id or result.device)
        if position is None:
            raise PluginError(f"this node has no device {result.device}; see kubectl get resourceslices")
        return position

    async def _hand_out(self, uid: str, pod: PodUid, claim: PreparedClaim, deadline: float) -> None:
        """Waits for the slices of a claim, and for its MPS daemon, and defines them for its containers."""
        positions = claim.slices()

        def missing() -> list[SlicePosition]:
            return [each for each in positions.values() if usable_slice(self._slices, pod, each) is None]

        if not await self._changes.wait_until(lambda: not missing(), max(0.0, deadline - self._clock.monotonic())):
            released = "former slices are still being released" if self._slices.is_released(pod) else ""
            reason = released or self._slices.last_problem_text(pod) or "the card has not made it yet"
            names = ", ".join(each.device_id for each in missing())
            raise PluginError(f"not ready after {PREPARE_TIMEOUT:.0f} s: {names}: {reason}; kubelet tries again")
        if claim.daemon is not None:
            await self._daemons.start(uid, claim, deadline)
        await self._files.write(uid, pod, claim)

    def _holds(self, pod: PodUid, positions: Iterable[SlicePosition]) -> bool:
        """True if every position is still a pod's; else its devices were given back without a call of kubelet."""
        return all(
            self._slices.is_promised(pod, each) or usable_slice(self._slices, pod, each) is not None
            for each in positions
        )

    def _device(self, claim: ClaimRef, result: AllocatedDevice, position: SlicePosition) -> PreparedDevice:
        return PreparedDevice(
            requests=(result.request.partition("/")[0],),
            pool=result.pool,
            device=result.device,
            cdi_devices=(self._cdi.name(claim.uid, _key(result, position)),),
            share_id=result.share_id,
        )


def _key(result: AllocatedDevice, position: SlicePosition) -> str:
    """Names a device within its claim: of a card in shares a claim may have several."""
    return f"{result.device}-{position.start}" if result.share_id else result.device


def device_name(card: SliceableGpu, profile: Profile, start: int) -> str:
    """The name of a position's device in a ResourceSlice."""
    minor = card.info.minor
    return whole_name(minor) if card.is_whole else partition_name(minor, profile, start)


def claim_devices(cards: SliceableGpus) -> dict[str, SlicePosition]:
    """By its name in a ResourceSlice, or its ``shareID``, every position on every card."""
    return {
        share_id(card.uuid, start) if card.shares is not None else device_name(card, row, start): SlicePosition(
            card.uuid, row.spelling, start
        )
        for card in cards.gpus
        if card.info.minor >= 0
        for row in card.geometry.profiles
        for start in row.starts
    }
