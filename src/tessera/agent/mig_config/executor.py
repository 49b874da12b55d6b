"""Reads and changes cards through NVML, with a journal, and empties the devices that a MIG layout replaces.

The journal is on disk before every call. Right before it destroys an instance, the executor asks NVML for processes:
NVML refuses to destroy an instance in use as well, but a process that has just begun would lose its device.

The journal has the state that the agent needs after a restart and cannot read from the hardware. It lists the instances
that a layout made or kept, so that they are destroyed when the card goes to slices on demand. It also records a reboot
for a layout, so that the node is not rebooted again and again. An atomic rename replaces the file before every call
that changes a card. The file is not flushed then, since instances do not outlive the machine either; before a reboot it
is flushed. A file that cannot be read counts as empty: its instances stay as foreign ones, and one more reboot may
follow.

Before a device is destroyed it is not enough to match kubelet's list with the pods that a watch has shown: kubelet may
admit a pod before the watch shows it. So once the fence is set, the drainer asks the API server itself for the pods of
the node, and kubelet after it. A pod with a fenced device got it before the fence, so it was bound before, and the API
server knows it. Kubelet lists the devices of a container a moment after the device plugin gave them, so devices that
were given lately count as used as well.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.agent.base.node_files import StateFile
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.settings import DesiredLayout
from tessera.agent.base.wake_ups import CallFailure, RetryDelays
from tessera.agent.inventory.device_state import match_device_users
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.agent.mig_config.events import (
    Call,
    CallFailed,
    CallSucceeded,
    CardRead,
    CardReadFailed,
    CreateCi,
    CreateGi,
    DestroyCi,
    DestroyGi,
    InstancePlace,
    Reset,
    SetMigMode,
    UserPod,
)
from tessera.kube.eviction import Blocked, Evictor
from tessera.nvml.errors import InUse, NvmlError, NvmlNotFound, ResetRequired
from tessera.nvml.interface import GpuUuid, MigModeResult


class LayoutRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the journal.

    Attributes:
        layout: the layout's name, for people who read the file.
        digest: identifies the layout by its name and entries; another digest is another layout.
        attempts: number of processes that began to apply this layout and did not see it in force.
        rebooted_from: boot id in which a reboot was requested for this layout; empty if none was.
        managed: places of instances that a layout made or kept, by card.
    """

    layout: str = ""
    digest: str = ""
    attempts: int = 0
    rebooted_from: str = ""
    managed: Mapping[str, tuple[InstancePlace, ...]] = msgspec.field(default_factory=dict, name="ours")


def digest_of(layout: DesiredLayout) -> str:
    """Identifies a layout by its name and entries alone, not by the cards or the reason why it is desired."""
    return hashlib.sha256(msgspec.json.encode([layout.name, layout.entries])).hexdigest()[:16]


class LayoutJournal:
    """The journal and its file. An agent that cannot write it must not touch the cards.

    Every method that writes raises OSError if the file cannot be written; the record then stays as it was.

    Args:
        path: the file. One agent at a time writes it.

    Attributes:
        record: the content, equal to the last one that was written.
    """

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, LayoutRecord)
        self.record = self._file.load() or LayoutRecord()

    def shows_in_force(self, layout: DesiredLayout) -> bool:
        """True if a process saw this layout in force, and none has begun with a layout since."""
        return self.record.digest == digest_of(layout) and self.record.attempts == 0

    def begin(self, layout: DesiredLayout, *, resumes: bool) -> None:
        """Counts an attempt: the first one for a new layout, another one if a new process resumes the work.

        Args:
            layout: the layout that is applied from now on.
            resumes: true if this process has not worked on any layout yet.
        """
        digest, last = digest_of(layout), self.record
        if digest != last.digest:
            self._write(LayoutRecord(layout=layout.name, digest=digest, attempts=1, managed=last.managed))
        elif resumes:
            self._write(msgspec.structs.replace(last, attempts=last.attempts + 1))

    def clear_attempts(self) -> None:
        """Forgets the attempts, once the layout is in force."""
        self._write(msgspec.structs.replace(self.record, attempts=0))

    def save_managed(self, uuid: str, places: Collection[InstancePlace]) -> None:
        """Saves the places of the instances that a layout made or kept on one card."""
        managed = dict(self.record.managed) | {uuid: tuple(sorted(places))}
        self._write(
            msgspec.structs.replace(self.record, managed={card: each for card, each in managed.items() if each})
        )

    def save_reboot(self, boot_id: str) -> None:
        """Saves, flushed to disk, the boot id in which a reboot is requested; empty if it was refused."""
        self._write(msgspec.structs.replace(self.record, rebooted_from=boot_id), flush=True)

    def _write(self, record: LayoutRecord, *, flush: bool = False) -> None:
        self._file.save(record, flush=flush)
        self.record = record


_log = logging.getLogger(__name__)

#: Delays before a card that does not answer is read again.
UNREADABLE_DELAYS = RetryDelays(first=1.0, most=30.0)


#: Seconds without a failed reading after which a card's earlier ones no longer count.
FORGIVEN = 600.0


class MigExecutor:
    """Reads and changes the node's cards.

    Args:
        runtime: the node's cards.
        inventory: reads a card.
        journal: saved before every call.
        on_reset: called with a card that was reset: the faults of hardware that no longer exists are over.
        on_destroyed: called with the card and the id of a GPU instance that was destroyed.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        inventory: InventoryReader,
        journal: LayoutJournal,
        on_reset: Callable[[str], None],
        on_destroyed: Callable[[str, int], None],
    ) -> None:
        self.journal = journal
        self._hardware = runtime.hardware
        self._inventory = inventory
        self._on_reset, self._on_destroyed = on_reset, on_destroyed
        self._clock = runtime.clock
        #: Failed readings of each card without :data:`FORGIVEN` seconds between two of them, the time of the last, and
        #: the error of the first: a card that answers now and then is tried and told like one that never answers.
        self._failed_reads: dict[GpuUuid, tuple[int, float, str]] = {}

    async def read(self, uuid: GpuUuid) -> CardRead | CardReadFailed:
        """Reads a card."""
        try:
            found = await self._read(uuid)
        except (NvmlError, ValueError) as error:
            now = self._clock.monotonic()
            before, at, text = self._failed_reads.get(uuid, (0, now, ""))
            told = _without_name(uuid, error)
            failures, text = (before + 1, text or told) if now - at < FORGIVEN else (1, told)
            self._failed_reads[uuid] = failures, now, text
            delay = UNREADABLE_DELAYS.after(failures)
            _log.warning("card %s cannot be read, next attempt in %.0f s: %s", uuid, delay, error)
            return CardReadFailed(text, now + delay)
        return found

    async def execute(self, uuid: GpuUuid, call: Call, managed: frozenset[InstancePlace]) -> CallSucceeded | CallFailed:
        """Makes a call; the next reading shows its result.

        Args:
            uuid: UUID of the card.
            call: the call.
            managed: the card's places of instances that a layout made or kept; saved before the call.
        """
        try:
            self.journal.save_managed(uuid, managed)
            await self._perform(uuid, call)
        except InUse as error:
            return self._failure_event(uuid, call, CallFailure.BUSY, error)
        except ResetRequired as error:
            return self._failure_event(uuid, call, CallFailure.NEEDS_RESET, error)
        except NvmlNotFound as error:
            if not isinstance(call, DestroyCi | DestroyGi):
                return self._failure_event(uuid, call, CallFailure.REFUSED, error)
        except (NvmlError, OSError) as error:
            return self._failure_event(uuid, call, CallFailure.REFUSED, error)
        return CallSucceeded(call)

    async def _read(self, uuid: GpuUuid) -> CardRead:
        card = await self._inventory.read_card(uuid)
        processes: dict[int | None, list[int]] = {}
        for each in await self._hardware.processes(uuid):
            processes.setdefault(each.gi_id, []).append(each.pid)
        return CardRead(
            mig_enabled=card.info.mig_enabled,
            mig_pending=card.info.mig_pending,
            geometry=card.geometry,
            instances=card.instances,
            processes={gi_id: tuple(pids) for gi_id, pids in processes.items()},
        )

    async def _perform(self, uuid: GpuUuid, call: Call) -> None:
        hardware = self._hardware
        match call:
            case SetMigMode(enabled=enabled):
                await self._check_idle(uuid, "MIG mode cannot change")
                await self._set_mode(uuid, enabled=enabled)
            case Reset():
                await self._check_idle(uuid, "it cannot be reset")
                await hardware.reset(uuid)
                self._on_reset(uuid)
            case CreateGi(place=place):
                await hardware.create_gpu_instance(uuid, place.profile, place.start)
            case CreateCi(gi_id=gi_id, profile_index=index):
                await hardware.create_compute_instance(uuid, gi_id, index)
            case DestroyCi(gi_id=gi_id, ci_id=ci_id):
                await self._check_idle(uuid, f"{call.mig_uuid} cannot be destroyed", gi_id)
                await hardware.destroy_compute_instance(uuid, gi_id, ci_id)
            case DestroyGi(gi_id=gi_id):
                await hardware.destroy_gpu_instance(uuid, gi_id)
                self._on_destroyed(uuid, gi_id)

    async def _set_mode(self, uuid: GpuUuid, *, enabled: bool) -> None:
        result = await self._hardware.set_mig_mode(uuid, enabled)
        if result is MigModeResult.IN_USE:
            raise InUse(f"MIG mode of {uuid} stays pending: a process that is not listed holds the card")
        if result is MigModeResult.RESET_REQUIRED:
            raise ResetRequired(f"MIG mode of {uuid} stays pending")

    async def _check_idle(self, uuid: GpuUuid, consequence: str, gi_id: int | None = None) -> None:
        """Raises InUse if a process computes on the card, or on one GPU instance of it."""
        users = [each.pid for each in await self._hardware.processes(uuid) if gi_id in (None, each.gi_id)]
        if users:
            raise InUse(f"card {uuid}: {consequence} while process {', '.join(map(str, users))} computes on it")

    def _failure_event(self, uuid: GpuUuid, call: Call, failure: CallFailure, error: Exception) -> CallFailed:
        level = logging.INFO if failure is CallFailure.BUSY else logging.WARNING
        _log.log(level, "%s on card %s failed: %s", type(call).__name__, uuid, error)
        return CallFailed(call, failure, _without_name(uuid, error), self._clock.monotonic())


def _without_name(uuid: GpuUuid, error: Exception) -> str:
    """The text of an error, for a message that begins with the card's name."""
    return str(error).removeprefix(f"card {uuid}").lstrip(": ")


class DeviceDrainer:
    """Lists and evicts the users of devices, through API server and kubelet.

    Args:
        runtime: the node's kubelet and pods.
        evictor: evicts pods; ``None`` if the policy is to wait for them.
        recent_allocations: UUIDs of devices in containers that kubelet may not list yet.
        overcounted_resources: resources of which the Node still counts devices that are fenced.
        close: called before devices are fenced; returns when no pod is on its way to them.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        evictor: Evictor | None = None,
        *,
        recent_allocations: Callable[[], frozenset[str]],
        overcounted_resources: Callable[[], Sequence[str]],
        close: Callable[[frozenset[str]], Awaitable[None]],
    ) -> None:
        self.overcounted_resources = overcounted_resources
        self.close = close
        self._recent_allocations = recent_allocations
        self._kubelet = runtime.kubelet
        self._pods = runtime.mirror
        self._evictor = evictor

    @property
    def may_evict(self) -> bool:
        """True if pods are evicted; otherwise the agent waits for them."""
        return self._evictor is not None

    def snapshot(self) -> object:
        """The inputs that are known without a request. While they are equal, a new list would be equal too."""
        return frozenset(pod.metadata.uid for pod in self._pods.live_pods()), self._recent_allocations()

    async def list(self) -> Mapping[str, tuple[UserPod, ...]]:
        """The pods that hold each card and MIG device, by its UUID.

        Raises:
            ConnectionError: API server or kubelet did not answer.
        """
        bound = await self._pods.list_bound_pods()
        listed = match_device_users(await self._kubelet.pod_resources(), bound)
        users = {
            device: tuple(sorted({UserPod(each.namespace, each.name, each.pod) for each in found}))
            for device, found in listed.items()
        }
        return {device: (UserPod(),) for device in self._recent_allocations()} | users

    async def evict(self, user: UserPod) -> str | None:
        """Asks the API server to evict a pod; returns why the pod stays, ``None`` if it will end or has ended."""
        assert self._evictor is not None
        answer = await self._evictor.evict(user.namespace, user.name, user.pod)
        return answer.text if isinstance(answer, Blocked) else None
