"""Tells the pods of the node about the health of their cards: the Event first, then the condition.

:mod:`tessera.agent.health.pod_conditions` decides. The name of the Event follows from the condition that it announces
and from the one before, so an agent that was killed between the two writes sends the Event again under the same name,
and the API server has it once. Kubelet is asked only while a fault lasts, or while a pod was not yet told of its end.

A pod holds a card, a share of it, a MIG device or a slice on demand. Kubelet knows the holders of static devices, the
slices their own pods. A lost card lists no MIG device, so the part of a device is remembered for as long as a pod holds
it. After a restart of the agent a device that no card lists is on the card that cannot be read, or whose MIG devices
cannot, if there is only one; of several, nobody knows which. The slices of a lost card are known from the node's
Instaslice object, though not their GPU instances: they are then held as a part of the whole card.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence

from tessera.agent.base.node_objects import ApiMirror
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.wake_ups import Fact
from tessera.agent.health.monitor import HealthMonitor
from tessera.agent.health.pod_conditions import Holdings, PodConditions, PodNotice, has_open_condition
from tessera.agent.inventory.device_state import DeviceScope, DeviceUsers
from tessera.agent.inventory.gpu_inventory import GpuInventory, InventoryReader
from tessera.agent.inventory.sliceable_gpus import SliceLease
from tessera.api.names import GPU_CONDITION, POD_HEALTH_MANAGER, PodUid
from tessera.clock import rfc3339
from tessera.kube.errors import ApiError, Conflict, Forbidden, NotFound, TooManyRequests
from tessera.kube.event_recorder import make_reference
from tessera.kube.resources import PODS, Pod
from tessera.kube.retries import Backoff
from tessera.nvml.known_cards import UNREAD

_log = logging.getLogger(__name__)

#: Seconds in which a watch shows a write; after that it counts as undone by somebody.
_SHOWN = 10.0
#: Pods that are told at a time; a card has up to 48 shares.
_AT_A_TIME = 8
#: Seconds until a pod that the API server refused is tried again: rights may come with an upgrade.
_REFUSED = 600.0
#: What decides about the holders.
_HOLDERS = Fact.PODS | Fact.ALLOCATIONS | Fact.ENTRIES | Fact.SLICES | Fact.CARDS
#: Least seconds between two readings of the holders, however much changes.
_GATHER = 0.2


class PartHolders:
    """Reads which pods hold which parts.

    Args:
        users: asks kubelet for the holders of static devices.
        leases: the slices on demand that pods hold.
        objects: the node's Instaslice object.
        inventory: the cards as last listed.
    """

    def __init__(
        self,
        users: DeviceUsers,
        leases: Callable[[], Sequence[SliceLease]],
        objects: ApiMirror,
        inventory: InventoryReader,
    ) -> None:
        self._users = users
        self._leases = leases
        self._objects = objects
        self._inventory = inventory
        #: The part of each device that is listed now, or that was listed and is held.
        self._parts: dict[str, DeviceScope] = {}

    async def read(self) -> Holdings:
        """Returns the parts that pods hold; pods that hold none, or none that is known, are missing.

        Raises:
            ConnectionError: kubelet did not answer.
        """
        users = await self._users.read()
        leases = self._leases()
        inventory = self._inventory.inventory
        listed = _list_parts(inventory)
        held = users.keys() | {each.device for each in leases}
        self._parts = {device: part for device, part in self._parts.items() if device in held} | listed
        found: dict[PodUid, set[DeviceScope]] = {}
        silent = [gpu.uuid for gpu in inventory.gpus if gpu.error or gpu.info.lost]
        for device, each in users.items():
            part = self._parts.get(device) or _unlisted_part(device, silent)
            if part is not None:
                for user in each:
                    found.setdefault(user.pod, set()).add(part)
        for lease in leases:
            if lease.device in self._parts:
                found.setdefault(lease.pod, set()).add(self._parts[lease.device])
        for pod, gpu in self._recorded_slices():
            parts = found.setdefault(pod, set())
            if not any(part.gpu == gpu for part in parts):
                parts.add(DeviceScope(gpu))
        return {pod: frozenset(parts) for pod, parts in found.items()}

    def _recorded_slices(self) -> Iterator[tuple[PodUid, str]]:
        item = self._objects.instaslice()
        for pod, result in item.status.pod_allocation_results.items() if item is not None else ():
            for gpu in {result.gpu_uuid, *(each.gpu_uuid for each in result.slices)}:
                yield PodUid(pod), gpu


def _list_parts(inventory: GpuInventory) -> dict[str, DeviceScope]:
    """The part of each card and MIG device that is listed now, by UUID."""
    parts = {gpu.uuid: DeviceScope(gpu.uuid) for gpu in inventory.gpus}
    for gpu in inventory.gpus:
        for instance in gpu.instances:
            for compute in instance.compute_instances:
                parts[compute.mig_uuid] = DeviceScope(gpu.uuid, instance.gi_id, compute.ci_id)
    return parts


def _unlisted_part(device: str, silent: Sequence[str]) -> DeviceScope | None:
    """The card of a device that no card lists; ``silent`` are the cards whose devices cannot be listed."""
    if len(silent) != 1:
        return None
    possible = device.startswith("MIG-") or silent[0].startswith(UNREAD)  # a card is no part of another one
    return DeviceScope(silent[0]) if possible else None


class PodReporter:
    """Writes the condition of pods and their Events.

    Args:
        runtime: the API server, where the agent needs ``patch`` on ``pods/status``; the pods of the node.
        health: the faults of the cards.
        holders: reads which pods hold which parts.
    """

    def __init__(self, runtime: AgentRuntime, *, health: HealthMonitor, holders: PartHolders) -> None:
        self._client = runtime.client.with_field_manager(POD_HEALTH_MANAGER)
        self._events = runtime.events
        self._pods = runtime.mirror
        self._health = health
        self._holders = holders
        changes = runtime.changes
        self._quiet = changes.about(Fact.HEALTH | Fact.TOLD_PODS)
        self._changes = changes.about(Fact.HEALTH | Fact.TOLD_PODS | _HOLDERS)
        self._clock = runtime.clock
        self._backoff = Backoff(runtime.rng)
        self._conditions = PodConditions()
        #: Notices that the API server has and the watch may not show yet, with their time.
        self._written: dict[str, tuple[PodNotice, float]] = {}
        #: By UID, pods whose status the API server did not let this agent write, and the time of the next attempt.
        self._forbidden: dict[str, float] = {}

    async def run(self) -> None:
        """Reports until cancelled."""
        while True:
            changes = self._changes if self._has_news() else self._quiet
            count = changes.count
            try:
                pause = await self._report()
            except (ApiError, ConnectionError, TimeoutError) as error:
                pause = self._backoff.next()
                _log.warning("pods are not told of their cards' health, next attempt in %.1f s: %s", pause, error)
                await self._clock.sleep(pause)
                continue
            self._backoff.reset()
            await changes.wait(count, pause)

    def _has_news(self) -> bool:
        """True if a pod may have to be told something: a card has a fault, or a pod was told of one."""
        faulty = any(fault.of_hardware for fault in self._health.state_machine.faults())
        return faulty or bool(self._written) or any(map(has_open_condition, self._pods.live_pods()))

    async def _report(self) -> float | None:
        """Tells pods what they do not know; returns the seconds until there is more to tell, if nothing changes."""
        live = self._pods.live_pods()
        self._forget_others({pod.metadata.uid for pod in live})
        pods = [pod for pod in live if not self._is_refused(pod) and not self._is_on_its_way(pod)]
        machine = self._health.state_machine
        faults = machine.faults()
        if not any(fault.of_hardware for fault in faults) and not any(has_open_condition(pod) for pod in pods):
            return self._next_try()
        holdings = await self._holders.read()
        spared = [fault for fault in faults if machine.spares(fault)]
        now = self._clock.monotonic()
        due, pause = self._conditions.decide(
            pods,
            holdings,
            faults,
            spared=spared,
            indexes=self._health.indexes(),
            repairs=machine.repairs,
            now=now,
            past=machine.past,
        )
        await self._tell_all(due)
        await self._clock.sleep(_GATHER)
        return min((each for each in (pause, self._next_try()) if each is not None), default=None)

    def _next_try(self) -> float | None:
        """The seconds until a pod may have to be told again that was not told, or does not show it."""
        if self._written:
            return _SHOWN
        return _REFUSED if self._forbidden else None

    def _forget_others(self, live: Collection[str]) -> None:
        self._written = {uid: each for uid, each in self._written.items() if uid in live}
        self._forbidden = {uid: at for uid, at in self._forbidden.items() if uid in live}

    def _is_refused(self, pod: Pod) -> bool:
        return self._forbidden.get(pod.metadata.uid, 0.0) > self._clock.monotonic()

    def _is_on_its_way(self, pod: Pod) -> bool:
        """True if the pod was told something that the watch does not show yet."""
        written = self._written.get(pod.metadata.uid)
        if written is None:
            return False
        notice, at = written
        shown = pod.status.condition(GPU_CONDITION)
        if (shown is not None and shown.message == notice.message) or self._clock.monotonic() - at >= _SHOWN:
            del self._written[pod.metadata.uid]
            return False
        return True

    async def _tell_all(self, notices: Sequence[PodNotice]) -> None:
        """Tells all pods, also if it fails for one; then raises what failed first."""
        slots = asyncio.Semaphore(_AT_A_TIME)

        async def tell(notice: PodNotice) -> None:
            async with slots:
                await self._tell(notice)

        for outcome in await asyncio.gather(*map(tell, notices), return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _tell(self, notice: PodNotice) -> None:
        pod = notice.pod.metadata
        about = make_reference(PODS, pod.name, pod.namespace, pod.uid)
        try:
            await self._events.send_once(about, notice.reason, notice.message, type=notice.kind, key=_key(notice))
            await self._apply(notice)
        except (NotFound, Conflict):
            return  # the pod is gone, or another one has its name
        except TooManyRequests:
            raise
        except Forbidden as error:
            self._forbidden[pod.uid] = self._clock.monotonic() + _REFUSED
            _log.warning("pod %s/%s is not told of its card's health: %s", pod.namespace, pod.name, error)
            return
        now = self._clock.monotonic()
        self._written[pod.uid] = notice, now
        self._conditions.note_told(notice, now)

    async def _apply(self, notice: PodNotice) -> None:
        before = notice.before
        kept = before.last_transition_time if before is not None and before.status == notice.status else None
        condition = {
            "type": GPU_CONDITION,
            "status": notice.status,
            "reason": notice.reason,
            "message": notice.message,
            "lastTransitionTime": kept or rfc3339(self._clock.now()),
        }
        pod = notice.pod.metadata
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        await self._client.apply(PODS, pod.name, body, pod.namespace, subresource="status")


def _key(notice: PodNotice) -> str:
    """Names the change from one condition to the next."""
    old = notice.before
    before = () if old is None else (old.status, old.reason, old.message, old.last_transition_time or "")
    text = repr((notice.pod.metadata.uid, before, notice.reason, notice.message))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
