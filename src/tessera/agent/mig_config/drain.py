"""Empties devices for a MIG layout: lists their pods without gaps, evicts them, or has the node rebooted.

Before a device is destroyed it is not enough to match kubelet's list with the pods that a watch has shown: kubelet may
admit a pod before the watch shows it. So once the fence is set, the drainer asks the API server itself for the pods of
the node, and kubelet after it. A pod with a fenced device got it before the fence, so it was bound before, and the API
server knows it. Kubelet lists the devices of a container a moment after the device plugin gave them, so devices that
were given lately count as used as well.

Rules of a reboot: it is for a card that cannot be reset, once for a layout. The other cards are finished first. No pod
and no process may be on any card of the node. The journal records the reboot, flushed to disk, before the request. If a
layout still needs a reboot after one, it has failed. Tessera does not cordon or drain here: an administrator who allows
reboots decides what else runs on the node.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tessera.agent.base.runtime import AgentRuntime, RebootNode
from tessera.agent.inventory.device_state import match_device_users
from tessera.agent.mig_config.events import CardStatus, LayoutState, UserPod
from tessera.agent.mig_config.executor import LayoutJournal
from tessera.kube.eviction import Blocked, Evictor
from tessera.nvml.errors import NvmlError


class DeviceDrainer:
    """Lists and evicts the users of devices, through API server and kubelet.

    Args:
        runtime: the node's kubelet and pods.
        evictor: evicts pods; ``None`` if the policy is to wait for them.
        recent_allocations: UUIDs of devices in containers that kubelet may not list yet.
        overcounted_resources: resources of which the Node still counts devices that are fenced.
        close: called before devices are fenced; returns when no pod is on its way to them.

    Attributes:
        overcounted_resources: the same.
        close: the same.
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


#: Seconds from the request until a node that still runs counts as one that does not reboot.
REBOOT_TIMEOUT = 600.0


class RebootRequests:
    """Asks for reboots of the node.

    Args:
        runtime: the node's cards, and its boot id; empty while unknown.
        reboot: reboots the node.
        journal: records reboots.
        users: lists the users of each device.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        reboot: RebootNode,
        *,
        journal: LayoutJournal,
        users: DeviceDrainer,
    ) -> None:
        self._reboot = reboot
        self._boot_id = runtime.mirror.boot_id
        self._journal = journal
        self._users = users
        self._hardware = runtime.hardware
        self._clock = runtime.clock
        #: Time at which this process requested a reboot or learned of a request; monotonic seconds.
        self._asked_at: float | None = None
        self._lock = asyncio.Lock()

    async def request(self, reason: str, *, others_pending: bool) -> CardStatus:
        """Reboots the node if that is allowed now; returns the status of the card.

        Args:
            reason: the card that needs the reboot, and why.
            others_pending: true if another card is not finished yet.
        """
        async with self._lock:
            boot_id = self._boot_id()
            if not boot_id:
                return _failed_status(f"{reason}; the node's boot id is not known, so no reboot is requested")
            before = self._journal.record.rebooted_from
            if before == boot_id:
                return self._wait_for_reboot(reason)
            if before:
                return _failed_status(f"{reason}; the node was rebooted for this layout once, which did not help")
            blocker = "the other cards" if others_pending else await self._find_blocker()
            if blocker:
                text = f"{reason}; the node's reboot waits for {blocker}"
                return CardStatus(LayoutState.PENDING, "CardsInUse", text)
            return await self._request(boot_id, reason)

    async def _request(self, boot_id: str, reason: str) -> CardStatus:
        try:
            self._journal.save_reboot(boot_id)
            self._asked_at = self._clock.monotonic()
            try:
                await self._reboot()
            except OSError:
                self._journal.save_reboot("")
                raise
        except OSError as error:
            return _failed_status(f"{reason}; the node cannot be rebooted: {error}")
        return self._wait_for_reboot(reason)

    def _wait_for_reboot(self, reason: str) -> CardStatus:
        now = self._clock.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        if now - self._asked_at > REBOOT_TIMEOUT:
            return _failed_status(
                f"{reason}; the node was asked to reboot {REBOOT_TIMEOUT:.0f} s ago and has not; reboot it"
            )
        return CardStatus(LayoutState.REBOOTING, "Rebooting", reason)

    async def _find_blocker(self) -> str:
        """The pods or processes on any card, for people; empty if there are none."""
        try:
            found = await self._users.list()
            if pods := sorted({str(each) for users in found.values() for each in users}):
                return ", ".join(pods)
            cards = [each.uuid for each in await self._hardware.devices() if each.readable]
            pids = [str(one.pid) for uuid in cards for one in await self._hardware.processes(uuid)]
        except (ConnectionError, NvmlError) as error:
            return f"the list of pods and processes on the cards, which cannot be read: {error}"
        return f"process {', '.join(pids)}" if pids else ""


def _failed_status(text: str) -> CardStatus:
    return CardStatus(LayoutState.FAILED, "ResetRequired", text)
