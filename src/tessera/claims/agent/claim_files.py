"""Writes the CDI files of prepared claims, and keeps them in line with their slices.

There is one file for each claim, with one device in it for each device of the claim. A container may use only some
devices of a claim, and several claims. The variable of its last device wins, so NVIDIA's runtime finds the devices by
their mounts (``docs/decisions/container-environment.md``). A claim's name is never used for other devices: runtimes
remember files.

A prepared claim has a file exactly while it has its slices. After a reboot or a reset the slices are made anew, and the
file with them, since kubelet does not ask again. A claim that lost a slice loses the file: the next slice at that place
has the same device nodes.

The slices belong to the pod whose promise serves the claim. That a claim uses them is a binding of that pod
(:data:`.SliceTable.bindings`); its id names device and claim.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from tessera.agent.base.device_plugin import define_device, environment, write_cdi_file
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.settings import ContainerEdits
from tessera.agent.base.wake_ups import Fact
from tessera.agent.inventory.sliceable_gpus import SlicePosition
from tessera.agent.slices.events import DevicesBound, ObservedInstance
from tessera.agent.slices.executor import WHOLE
from tessera.agent.slices.slice_table import SliceJournalFile, SliceTable, claim_of
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.names import PodUid
from tessera.claims.agent.prepared_claims import ClaimDaemons, PreparedClaim, PreparedClaims
from tessera.kubelet.interfaces import PluginError
from tessera.mig.names import is_device_profile
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import DeviceFile, GpuUuid

_NONE = ContainerEdits({}, ())
_log = logging.getLogger(__name__)
#: Seconds after which a file that could not be written or removed is tried again.
RETRY = 5.0
#: Of each slice of a claim, the ids of its instances and its MIG UUID: what its file depends on.
_Made = tuple[tuple[int, int, str], ...]


class ClaimCdiFolder:
    """Our files for claims in the folder that the container runtime reads.

    Args:
        path: the folder; made when needed.
        driver: the driver's name.
    """

    def __init__(self, path: Path, driver: str) -> None:
        self._path = path
        self._kind = f"k8s.{driver}/claim"
        self._prefix = f"k8s.{driver}-claim_"

    def name(self, uid: str, device: str) -> str:
        """The full CDI name of a claim's device."""
        return f"{self._kind}={uid}-{device}"

    def write(
        self,
        uid: str,
        devices: Mapping[str, tuple[str, Sequence[DeviceFile]]],
        edits: Mapping[str, ContainerEdits],
    ) -> None:
        """Defines the devices of a claim.

        Args:
            uid: of the claim.
            devices: by device, its UUID and the files that a container must be able to open to use it.
            edits: by device that an MPS daemon serves, what a client of the daemon needs.

        Raises:
            OSError: the folder cannot be written.
        """
        env = environment([each for each, _ in devices.values()])
        write_cdi_file(
            self._path / f"{self._prefix}{uid}.json",
            self._kind,
            [
                define_device(
                    f"{uid}-{device}",
                    {**env, **edits.get(device, _NONE).envs},
                    files,
                    mounted=(uuid,) if files else (),
                    folders=edits.get(device, _NONE).mounts,
                )
                for device, (uuid, files) in devices.items()
            ],
        )

    def remove(self, uid: str) -> None:
        """Removes the definitions of a claim, if there are any.

        Raises:
            OSError: the file cannot be removed.
        """
        (self._path / f"{self._prefix}{uid}.json").unlink(missing_ok=True)

    def keep_only(self, uids: Iterable[str]) -> None:
        """Removes the files of claims that are no longer prepared."""
        kept = {f"{self._prefix}{uid}.json" for uid in uids}
        for path in [*self._path.glob(f"{self._prefix}*.json"), *self._path.glob(f".{self._prefix}*.new")]:
            if path.name not in kept:
                _log.info("removing stale CDI file %s", path)
                path.unlink(missing_ok=True)


class ClaimFiles:
    """The CDI files of the claims of this node.

    Args:
        runtime: options, cards and change notifier of this agent.
        cdi: the folder.
        machine: the slices and their owners.
        journal: written to disk before a container gets its slices.
        prepared: the prepared claims.
        daemons: the MPS daemons of claims.

    Attributes:
        locks: by claim that is being prepared or unprepared, its lock. Kubelet may repeat a call that it has given up.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        cdi: ClaimCdiFolder,
        *,
        machine: SliceStateMachine,
        journal: SliceJournalFile,
        prepared: PreparedClaims,
        daemons: ClaimDaemons,
    ) -> None:
        self.locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._changes = runtime.changes.about(Fact.SLICES)
        self._hardware = runtime.hardware
        self._cdi = cdi
        self._machine = machine
        self._slices = machine.table
        self._journal = journal
        self._prepared = prepared
        self._daemons = daemons
        #: By claim, the slices in the file that this agent wrote last.
        self._defined: dict[str, _Made] = {}
        #: Claims whose note is lost, and the pods whose promises serve them. They keep a file that they have as long as
        #: the pod owns slices.
        self._others: dict[str, PodUid] = {}

    def lock(self, uid: str) -> asyncio.Lock:
        """The lock of a claim; the caller has a reference to it while it matters."""
        return self.locks.setdefault(uid, asyncio.Lock())

    async def restore(self) -> None:
        """Writes the files of all prepared claims whose slices exist, and removes those of claims that are gone."""
        prepared = {uid for uid, _ in self._prepared.items()}
        bound = {claim_of(each): pod for pod, devices in self._slices.bindings.items() for each in devices}
        self._others = {uid: pod for uid, pod in bound.items() if uid and uid not in prepared}
        self._cdi.keep_only(prepared | self._others.keys())
        await self._define_prepared()

    async def run(self) -> None:
        """Keeps all files as they should be until cancelled."""
        while True:
            count = self._changes.count
            complete = await self._define_prepared()
            await self._changes.wait(count, None if complete else RETRY)

    async def write(self, uid: str, pod: PodUid, claim: PreparedClaim) -> None:
        """Writes a claim's file and binds its slices.

        Args:
            uid: of the claim, whose lock the caller holds.
            pod: the pod whose promise serves it.
            claim: the claim.

        Raises:
            PluginError: a slice does not exist, or the file cannot be written.
        """
        devices, positions, daemon = {}, claim.slices(), claim.daemon
        made = self._made(pod, claim)
        with refusing("the claim's devices cannot be prepared"):
            for (device, position), (gi_id, ci_id, mig) in zip(positions.items(), made or (), strict=made is not None):
                devices[device] = mig, await self._device_files(position, gi_id, ci_id)
            if made is None or made != self._made(pod, claim):
                names = ", ".join(sorted(each.device_id for each in positions.values()))
                raise PluginError(f"slices were destroyed in between: {names}; kubelet tries again")
            if not claim.admin:
                bind_claim(self._machine, uid, pod, positions)
                self._journal.save(self._slices.journal())
            served = {device for device, each in positions.items() if daemon is not None and each.gpu in daemon.devices}
            self._cdi.write(uid, devices, dict.fromkeys(served, self._daemons.edits(uid, claim)))
            self._defined[uid] = made

    async def _device_files(self, position: SlicePosition, gi_id: int, ci_id: int) -> Sequence[DeviceFile]:
        card = GpuUuid(position.gpu)
        if is_device_profile(position.profile):
            return await self._hardware.card_files(card)
        return await self._hardware.device_files(card, gi_id, ci_id)

    def remove(self, uid: str) -> None:
        """Removes a claim's file, if there is one.

        Raises:
            OSError: it cannot be removed.
        """
        self._defined.pop(uid, None)
        self._cdi.remove(uid)

    async def _define_prepared(self) -> bool:
        """Removes and writes files; true if all are as they should be. Removes first: that is what cannot wait."""
        complete = True
        slices = self._slices
        gone = {uid for uid, pod in self._others.items() if slices.is_released(pod) or not slices.positions_of(pod)}
        self._others = {uid: pod for uid, pod in self._others.items() if uid not in gone}
        claims = [(uid, claim, self._made(self._pod(uid), claim)) for uid, claim in self._prepared.items()]
        for uid in (*gone, *(uid for uid, _, made in claims if made is None)):
            complete &= self._undefine(uid)
        for uid, claim, _ in claims:
            lock, made = self.lock(uid), self._made(self._pod(uid), claim)
            if lock.locked() or made is None or made == self._defined.get(uid):
                continue  # a call of kubelet's for the claim ends with the right file
            async with lock:
                if self._prepared.get(uid) is claim:
                    complete &= await self._define(uid, claim)
        return complete

    async def _define(self, uid: str, claim: PreparedClaim) -> bool:
        try:
            await self.write(uid, self._pod(uid), claim)
        except PluginError as error:
            _log.warning("claim %s/%s: %s", claim.namespace, claim.name, error)
            return False
        return True

    def _undefine(self, uid: str) -> bool:
        try:
            self.remove(uid)
        except OSError as error:
            _log.warning("claim %s: its CDI file cannot be removed: %s", uid, error)
            return False
        return True

    def _pod(self, uid: str) -> PodUid:
        """The pod whose promise serves a claim; empty, which owns nothing, once nobody knows."""
        return self._prepared.promise(uid) or PodUid("")

    def _made(self, pod: PodUid, claim: PreparedClaim) -> _Made | None:
        """All slices of a claim that a pod's promise serves; ``None`` if one is missing. A card is always there."""
        positions = claim.slices().values()
        if claim.admin:
            return tuple((WHOLE, WHOLE, each.gpu) for each in positions)
        found = [usable_slice(self._slices, pod, each) for each in positions]
        return None if None in found else tuple((each.gi_id, *each.computes[0]) for each in found if each is not None)


def usable_slice(slices: SliceTable, pod: PodUid, position: SlicePosition) -> ObservedInstance | None:
    """A slice of a promise if containers can use it now; none while it is being released."""
    return None if slices.is_released(pod) else slices.ready_slice(pod, position)


def bind_claim(
    machine: SliceStateMachine, claim: str, pod: PodUid, positions: Mapping[str, SlicePosition] | None = None
) -> None:
    """Tells the machine which slices of a pod's promise the containers of a claim use: by device, all of them."""
    known = machine.table.bindings_of(pod)
    bound = {device: each for device, each in known.items() if claim_of(device) != claim}
    bound |= {f"{device}@{claim}": each for device, each in (positions or {}).items()}
    if bound != known:
        machine.handle(DevicesBound(pod, bound))


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turns errors of the disk and of NVML into a refusal that kubelet shows."""
    try:
        yield
    except (NvmlError, OSError) as error:
        raise PluginError(f"{what}: {error}") from error
