"""Tests the cards of a pod before its first container starts, where the administrator lets pods ask for it.

A pod asks by the annotation ``tessera.dev/require-preflight: "true"``; the file of repairs must have ``podPreflight``.
Kubelet waits 30 s for PreStartContainer and names no pod: a static device's holder is known from pod-resources, a
slice's from its promise. Rules:

1.  Whole cards, MIG devices and slices are tested. A share is not: other pods compute on its card.
2.  Once for a start: a pod whose container with cards has started before is not tested again, so one that crashes in a
    loop keeps no card busy. All static devices of the pod are tested before the first container that has one.
3.  A device that passed in the last :data:`PASS_LIFE` seconds counts as tested. One that failed is not tested for a pod
    again: its card needs a reset, and every start is refused until then.
4.  One device of the node is tested at a time: the process of a test takes some hundred megabytes of the agent's. A
    start that has no turn in time, or whose devices need more time, is refused, and kubelet tries it again: what has
    passed by then counts. Kubelet does the same if the agent dies meanwhile.
5.  A device that fails is a fault of its card, and the start is refused with the sentence about it.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.health.monitor import HealthMonitor
from tessera.agent.health.repairs import PreflightRunner
from tessera.agent.inventory.device_state import CheckedDevice, DeviceUser, DeviceUsers
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.api.names import PodUid
from tessera.api.nodes.preflights import CardTest, describe_test
from tessera.api.pod_annotations import asks_for_preflight
from tessera.kube.resources import Container, Pod
from tessera.kubelet.interfaces import PluginError
from tessera.limits import CONDITION_MESSAGE
from tessera.nvml.interface import GpuInfo
from tessera.text import one_line

#: Seconds for which a pass counts for the next pods on the device.
PASS_LIFE = 600.0
#: Seconds of a start after which no further test begins; with the last one it ends before kubelet gives up.
LAST_BEGIN = 12.0
#: Seconds until pod-resources lists a pod at the latest, and before it is asked again.
_LISTED_WITHIN, _LISTING_PAUSE = 1.0, 0.1


class PodPreflights:
    """Tests the cards of pods that ask for it; a :class:`.StartCheck`.

    Args:
        runtime: the pods of the node, and Events that tell them the result.
        runner: tests a device.
        health: the faults of the cards, and what the administrator allows.
        inventory: the node's cards.
        users: asks kubelet for the holders of static devices.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        runner: PreflightRunner,
        *,
        health: HealthMonitor,
        inventory: InventoryReader,
        users: DeviceUsers,
    ) -> None:
        self._runner = runner
        self._health = health
        self._inventory = inventory
        self._pods = runtime.mirror
        self._users = users
        self._events = runtime.object_events
        self._clock = runtime.clock
        self._turn = asyncio.Lock()
        #: Monotonic time at which each device passed last, of the last :data:`PASS_LIFE` seconds.
        self._passed: dict[str, float] = {}

    async def check(self, resource: str, devices: Iterable[CheckedDevice], /, *, pod: PodUid | None = None) -> None:
        """See :class:`.StartCheck`."""
        asking = {
            PodUid(each.metadata.uid): each
            for each in self._pods.live_pods()
            if asks_for_preflight(each.metadata.annotations)
        }
        if not asking or not self._health.state_machine.repairs.pod_preflight:
            return
        wanted = set(devices)
        if pod is None:
            pod, wanted = await self._find_holder(resource, wanted, asking)
        found = asking.get(pod) if pod is not None else None
        if found is None or has_started(found):
            return
        deadline = self._clock.monotonic() + LAST_BEGIN
        if failed := [text for each in sorted(wanted) if (text := await self._test(found, each, deadline))]:
            raise PluginError("; ".join(failed))

    async def _find_holder(
        self, resource: str, devices: set[CheckedDevice], asking: Mapping[PodUid, Pod]
    ) -> tuple[PodUid | None, set[CheckedDevice]]:
        """The pod that holds static devices, with all of them that it holds alone.

        An init container is listed for no pod: its devices are those of an asking pod that has one, if any has.
        """
        uuids = {each.uuid for each in devices}
        users: Mapping[str, Sequence[DeviceUser]] = {}
        deadline = self._clock.monotonic() + _LISTED_WITHIN
        while self._clock.monotonic() < deadline:
            try:
                users = await self._users.read()
            except ConnectionError as error:
                raise PluginError(f"{resource}: kubelet does not say whose devices to test: {error}") from error
            if uuids & users.keys():
                break
            await self._clock.sleep(_LISTING_PAUSE)
        holders = {user.pod for uuid in uuids for user in users.get(uuid, ())}
        if not holders:
            return next((uid for uid, pod in asking.items() if _initializes(pod, resource)), None), devices
        if len(holders) > 1 or not holders <= asking.keys():
            return None, set()
        (holder,) = holders
        own = {uuid for uuid, each in users.items() if {user.pod for user in each} == holders}
        return holder, devices | {each for each in self._listed() if each.uuid in own}

    def _listed(self) -> Iterable[CheckedDevice]:
        for gpu in self._inventory.inventory.gpus:
            yield CheckedDevice(gpu.uuid, gpu.uuid)
            for instance in gpu.instances:
                yield from (
                    CheckedDevice(each.mig_uuid, gpu.uuid, instance.gi_id) for each in instance.compute_instances
                )

    async def _test(self, pod: Pod, device: CheckedDevice, deadline: float) -> str:
        """Tests one device; returns why the pod may not start on it, empty if it may."""
        card = self._inventory.inventory.gpu(device.gpu)
        if card is None:
            return f"{device.gpu}: the card is not listed any more"
        if failure := self._health.failed_pod_preflight(device.gpu):
            return failure
        now = self._clock.monotonic()
        self._passed = {uuid: at for uuid, at in self._passed.items() if now - at < PASS_LIFE}
        if device.uuid in self._passed:
            text = f"passed {now - self._passed[device.uuid]:.0f} s ago, for another pod"
            self._events.record_on_pod(pod, "GpuPreflightPassed", f"{_name(card.info, device)}: {text}", "Normal")
            return ""
        return self._report(pod, device, card.info, await self._run(card.info, device, deadline))

    async def _run(self, card: GpuInfo, device: CheckedDevice, deadline: float) -> CardTest:
        if not await self._take_turn(deadline):
            raise PluginError("the cards of the node are being tested; the start is tried again")
        try:
            found = await self._runner.run_quick(card, device.uuid)
        finally:
            self._turn.release()
        return msgspec.structs.replace(found.summary(self._clock.now()), part=device.gi_id)

    async def _take_turn(self, deadline: float) -> bool:
        """Waits for this test's turn; false if it does not come in time."""
        left = deadline - self._clock.monotonic()
        if left <= 0:
            return False
        try:
            async with asyncio.timeout(left):
                return await self._turn.acquire()
        except TimeoutError:
            return False

    def _report(self, pod: Pod, device: CheckedDevice, card: GpuInfo, test: CardTest) -> str:
        self._health.note_pod_preflight(test)
        name = _name(card, device)
        if test.finding:
            failure = self._health.failed_pod_preflight(device.gpu) or f"{name}: {describe_test(test)}"
            self._events.record_on_pod(pod, "GpuPreflightFailed", one_line(failure, CONDITION_MESSAGE), "Warning")
            return failure
        reason = "GpuPreflightSkipped" if test.skipped else "GpuPreflightPassed"
        if not test.skipped:
            self._passed[device.uuid] = self._clock.monotonic()
        self._events.record_on_pod(pod, reason, f"{name}: {describe_test(test)}", "Normal")
        return ""


def has_started(pod: Pod) -> bool:
    """True if a container of the pod that has cards runs, or has run."""
    with_cards = {each.name for each in (*pod.spec.init_containers, *pod.spec.containers) if _has_cards(each)}
    return any(
        each.restart_count > 0 or (each.state is not None and (each.state.running or each.state.terminated))
        for each in pod.status.containers
        if each.name in with_cards
    )


def _has_cards(container: Container) -> bool:
    return any(name.startswith("nvidia.com/") for name in container.resources.limits)


def _initializes(pod: Pod, resource: str) -> bool:
    return any(resource in each.resources.limits for each in pod.spec.init_containers)


def _name(card: GpuInfo, device: CheckedDevice) -> str:
    return f"GPU {card.index}" if device.gi_id < 0 else f"GPU {card.index} GPU instance {device.gi_id}"
