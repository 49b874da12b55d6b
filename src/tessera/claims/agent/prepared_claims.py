"""The claims that are prepared on this node, with the pods whose promises serve them, and their MPS daemons.

Kubelet asks once for each claim, and not again after a restart of the agent or of the node. So the agent remembers what
it answered on disk, and writes the CDI files anew at each start: the folder is empty after a reboot (kubernetes
#141433). Kubelet flushes its own note of a claim, so this file is flushed too: both are there after a crash, or both
are not.

Which promise serves a claim is remembered beyond that, until the promise is gone: pods that share a claim may come one
after the other, and the promise has the first pod's UID.

One MPS daemon serves the cards of a claim whose configuration has the strategy MPS. Another serves all cards of the
node that claims get in shares by MPS, since a container has one daemon at most. They are daemons like those of a
sharing profile (:mod:`tessera.agent.mps`), with the claim in place of a resource. A daemon is wanted from the claim's
prepare until its unprepare; what a prepared claim wants is in its note.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.agent.base.node_files import StateFile
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.settings import ContainerEdits, ServicePlan
from tessera.agent.base.wake_ups import Fact
from tessera.agent.inventory.sliceable_gpus import SliceableGpu, SlicePosition, parse_device_id
from tessera.agent.mps.daemons import MpsDaemons
from tessera.api.names import PodUid
from tessera.api.sharing.profile import ClientShare, client_share
from tessera.dra.opaque_configs import ConfigRefused, DeviceSettings, MpsSettings
from tessera.kubelet.interfaces import PluginError, PreparedDevice
from tessera.nvml.interface import GpuInfo

#: The largest share of threads that a client may have, in percent: what it has without a setting.
_ALL_THREADS = 100


class PreparedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim whose devices containers may use.

    Attributes:
        namespace: of the claim.
        name: of the claim.
        devices: what kubelet was answered.
        positions: by device, or by device and place of a share, the id of its slice's position
            (:attr:`.SlicePosition.device_id`); in the order of ``devices``.
        daemon: the MPS daemon that serves its cards; ``None`` without one.
        shared: the daemon serves the shares of other claims too.
        admin: it takes nothing from others, so no promise serves it.
    """

    namespace: str
    name: str
    devices: tuple[PreparedDevice, ...]
    positions: Mapping[str, str]
    daemon: ServicePlan | None = None
    shared: bool = False
    admin: bool = False

    def slices(self) -> dict[str, SlicePosition]:
        """By device, the position of its slice."""
        return {device: parse_device_id(text) for device, text in self.positions.items()}


class _Notes(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file, each by the UID of a claim."""

    prepared: dict[str, PreparedClaim] = {}
    promises: dict[str, PodUid] = {}


class _NotesFile(StateFile[_Notes]):
    """The file; an invalid position in it, or a prepared claim that no promise serves, counts as damage."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _Notes)

    def check(self, value: _Notes) -> None:
        """Checks that every position can be parsed, and that every prepared claim has its promise.

        Raises:
            ValueError: one cannot, or has none.
        """
        for uid, claim in value.prepared.items():
            claim.slices()
            if uid not in value.promises and not claim.admin:
                raise ValueError(f"claim {uid} has no promise")


class PreparedClaims:
    """All prepared claims of this node, by UID.

    Args:
        path: the file. One agent at a time writes it.
    """

    def __init__(self, path: Path) -> None:
        self._file = _NotesFile(path)
        self._notes = self._file.load() or _Notes()

    def get(self, uid: str) -> PreparedClaim | None:
        """The claim with a UID; ``None`` if it is not prepared."""
        return self._notes.prepared.get(uid)

    def items(self) -> Sequence[tuple[str, PreparedClaim]]:
        """All of them with their UIDs."""
        return list(self._notes.prepared.items())

    def promise(self, uid: str) -> PodUid | None:
        """The pod whose promise serves a claim, or served it while it was prepared last."""
        return self._notes.promises.get(uid)

    def pods(self) -> set[PodUid]:
        """The pods whose promises serve claims."""
        return set(self._notes.promises.values())

    def serves(self, pod: PodUid) -> bool | None:
        """True if a claim is prepared that a pod's promise serves; ``None`` if it serves no claim."""
        claims = [uid for uid, each in self._notes.promises.items() if each == pod]
        return any(uid in self._notes.prepared for uid in claims) if claims else None

    def add(self, uid: str, claim: PreparedClaim, pod: PodUid | None) -> None:
        """Notes a claim that the promise to a pod serves; ``None`` if it needs none.

        Raises:
            OSError: the file cannot be written; the claim is not noted.
        """
        self._save(self._notes.prepared | {uid: claim}, self._notes.promises | ({} if pod is None else {uid: pod}))

    def remove(self, uid: str) -> None:
        """Notes that a claim is no longer prepared.

        Raises:
            OSError: the file cannot be written; the claim is still prepared.
        """
        if uid in self._notes.prepared:
            prepared = {key: claim for key, claim in self._notes.prepared.items() if key != uid}
            self._save(prepared, self._notes.promises)

    def forget(self, promised: Container[PodUid]) -> set[PodUid]:
        """Forgets the claims that are not prepared and whose promise is gone; returns the pods of these promises.

        Args:
            promised: the pods with a promise.

        Raises:
            OSError: the file cannot be written; nothing is forgotten.
        """
        notes = self._notes
        gone = {uid for uid, pod in notes.promises.items() if uid not in notes.prepared and pod not in promised}
        if gone:
            self._save(notes.prepared, {uid: pod for uid, pod in notes.promises.items() if uid not in gone})
        return {notes.promises[uid] for uid in gone}

    def _save(self, prepared: dict[str, PreparedClaim], promises: dict[str, PodUid]) -> None:
        notes = _Notes(prepared=prepared, promises=promises)
        self._file.save(notes, flush=True)
        self._notes = notes


class ClaimDaemons:
    """The daemons that the claims of this node want.

    Args:
        runtime: clock and change notifier of this agent.
        daemons: the node's daemons.
        prepared: the prepared claims.
    """

    def __init__(self, runtime: AgentRuntime, daemons: MpsDaemons, prepared: PreparedClaims) -> None:
        self._clock = runtime.clock
        self._changes = runtime.changes.about(Fact.MPS | Fact.SLICES)
        self._daemons = daemons
        self._prepared = prepared
        #: Claims that are being prepared and need a daemon, by UID.
        self._starting: dict[str, PreparedClaim] = {}
        self.update()

    def update(self) -> None:
        """Wants exactly the daemons of the claims that are prepared, or being prepared."""
        claims = {**dict(self._prepared.items()), **self._starting}
        plans = {_resource(uid, claim): claim.daemon for uid, claim in claims.items()}
        self._daemons.set_claim_plans({name: plan for name, plan in plans.items() if plan is not None})

    async def start(self, uid: str, claim: PreparedClaim, deadline: float) -> None:
        """Returns once the daemon of a claim serves its cards. The caller notes the claim and calls :meth:`settle`.

        Raises:
            PluginError: it does not until the deadline, monotonic seconds.
        """
        if self._prepared.get(uid) is None:
            self._starting[uid] = claim
            self.update()
        resource = _resource(uid, claim)
        left = max(0.0, deadline - self._clock.monotonic())
        if not await self._changes.wait_until(lambda: self._daemons.ready(resource), left):
            raise PluginError(f"its MPS daemon does not serve: {self._daemons.problem(resource)}; kubelet tries again")

    def settle(self, uid: str) -> None:
        """Takes in that a claim's prepare has ended: its daemon goes on if the claim was noted."""
        if self._starting.pop(uid, None) is not None:
            self.update()

    def edits(self, uid: str, claim: PreparedClaim) -> ContainerEdits:
        """What a container needs to be a client of a claim's daemon."""
        return self._daemons.container_edits(_resource(uid, claim))


def plan_shares(cards: Iterable[SliceableGpu]) -> ServicePlan | None:
    """Returns the daemon for all cards of a node that are given in shares by MPS; None without such a card."""
    counts = {each.info: each.shares.count for each in cards if each.shares and each.shares.have_daemon}
    shares: dict[str, ClientShare] = {info.uuid: client_share(info.memory_mib, count) for info, count in counts.items()}
    return ServicePlan(shares, max(counts.values())) if shares else None


def plan_daemon(place: str, cards: Sequence[tuple[GpuInfo, DeviceSettings]]) -> ServicePlan | None:
    """Returns the daemon that the cards of a claim need; None if they need none.

    Args:
        place: the claim, for messages.
        cards: each card of the claim, in the order of its allocation, with its settings.

    Raises:
        ConfigRefused: a limit is for a device that the claim does not have.
    """
    shares: dict[str, ClientShare] = {}
    names = {str(index): info.uuid for index, (info, _) in enumerate(cards)} | {
        info.uuid: info.uuid for info, _ in cards
    }
    for info, settings in cards:
        if settings.mps is not None:
            limits = _limits_by_card(place, settings.mps, names)
            memory = limits.get(info.uuid, settings.mps.pinned_mib or info.memory_mib)
            threads = settings.mps.thread_percent
            shares[info.uuid] = ClientShare(memory, _ALL_THREADS if threads is None else threads)
    return ServicePlan(shares, 1) if shares else None


def _limits_by_card(place: str, settings: MpsSettings, names: Mapping[str, str]) -> dict[str, int]:
    for key in settings.pinned_mib_by_device:
        if key not in names:
            raise ConfigRefused(
                f"{place}: defaultPerDevicePinnedMemoryLimit.{key} is no device of the claim: write the number of one,"
                f" 0 to {len(names) // 2 - 1}, or its UUID"
            )
    return {names[key]: mib for key, mib in settings.pinned_mib_by_device.items()}


def _resource(uid: str, claim: PreparedClaim) -> str:
    """Stands for the resource of a sharing profile, in the names of folders too."""
    return "claim-shares" if claim.shared else f"claim-{uid}"
