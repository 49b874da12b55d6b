"""Serves resources to kubelet, each by a plugin and a task of its own, and corrects the Node where kubelet is late.

A resource that stays keeps its plugin with a new list, so its count never drops meanwhile. The list of a resource that
is gone is emptied at once: kubelet fails a pod for which it asks for a device that it lists and does not get. When
kubelet has read an empty list, the serving of that resource ends. As long as pods hold devices of it, it is served on
with an empty list: kubelet does not restart a container whose resource has no plugin.

Nothing in the protocol says that kubelet has counted a list. A list counts as counted :data:`HANDOVER` seconds after
kubelet has read it. A kubelet that does not answer delays a change by :data:`HANDOVER_TIMEOUT` seconds at most.

Five minutes after a plugin has ended kubelet forgets its devices, and sets the resource to 0 on the node instead of
removing it (``pkg/kubelet/nodestatus/setters.go``). Readers of the node then see ``nvidia.com/gpu: 0`` beside
``nvidia.com/gpu.shared: 16`` for ever. Kubelet writes that 0 once, so after it the name can be removed for good. A
kubelet that was restarted counts its five minutes anew and may write the 0 again; then the name is removed again.

Only names that this agent has offered itself, on either side, are ever removed. They are kept in a file, since the five
minutes may be longer than the agent's life.

Kubelet writes a changed amount up to 10 s after it has read the list, and fails pods that kube-scheduler sends in
between, for good. So the agent lowers the allocatable amount itself: before a change that it plans, and then it lets
the pods arrive that are on their way; and where a pod is about to leave a card that no other pod may get.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from tessera.agent.base.node_files import StateFile
from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.agent.sharing.device_plugin import AllocationCalls, StaticDevicePlugin
from tessera.clock import Clock
from tessera.kube.errors import ApiError
from tessera.kube.quantity import count_or_zero
from tessera.kube.resources import Node
from tessera.kubelet.interfaces import Device, Kubelet, PluginError

_log = logging.getLogger(__name__)

#: Seconds to wait for kubelet: twice the time that it takes to dial a plugin.
HANDOVER_TIMEOUT = 20.0
#: Seconds from kubelet's reading of a list until it has counted it, on another stream than the next list's.
HANDOVER = 0.1
#: Shortest wait, in seconds.
_SHORTEST_WAIT = 0.001
#: Seconds before a resource that kubelet refused is offered to it again.
REFUSED_PAUSE = 10.0


class _Served:
    """One resource.

    Attributes:
        plugin: its plugin.
        task: serves it.
        retired: true if it is about to end, with an empty list.
        since: time at which it was last begun or retired.
        read: time at which kubelet was first seen to have read its list since then.
    """

    def __init__(self, plugin: StaticDevicePlugin, task: "asyncio.Task[None]", since: float) -> None:
        self.plugin = plugin
        self.task = task
        self.begin(since, retired=False)

    def begin(self, now: float, *, retired: bool) -> None:
        """Begins or retires the resource."""
        self.retired, self.since = retired, now
        self.read: float | None = None

    def seconds_left(self, now: float) -> float:
        """Returns the seconds to wait for kubelet; 0 once it has counted the list or the time is over."""
        if self.read is None and self.plugin.is_listed:
            self.read = now
        left = self.since + HANDOVER_TIMEOUT - now if self.read is None else self.read + HANDOVER - now
        return left if left > _SHORTEST_WAIT else 0.0


class ServedResources:
    """The plugins of the static side.

    Args:
        kubelet: the node's kubelet.
        changes: notified when kubelet refused a resource.
        clock: times the hand-over from old lists to new ones.
    """

    def __init__(self, kubelet: Kubelet, changes: ChangeNotifier, clock: Clock) -> None:
        self._kubelet = kubelet
        self._changes = changes
        self._clock = clock
        #: Owner of the serving tasks, and host of the plugins; set by :meth:`start`, before any call of :meth:`update`.
        self._group: asyncio.TaskGroup | None = None
        self._host: AllocationCalls | None = None
        self._served: dict[str, _Served] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, str] = {}

    def start(self, group: asyncio.TaskGroup, host: AllocationCalls) -> None:
        """Begins to serve.

        Args:
            group: owns the serving tasks.
            host: answers the plugins' calls.
        """
        self._group, self._host = group, host

    @property
    def plugins(self) -> dict[str, StaticDevicePlugin]:
        """The plugin of each served resource, including those about to end."""
        return {name: served.plugin for name, served in self._served.items()}

    @property
    def refused_resources(self) -> Mapping[str, str]:
        """The resources that kubelet refuses, each with its reason."""
        plugins = self.plugins
        return {name: why for name, why in self._refused.items() if name in plugins and not plugins[name].is_streaming}

    def ensure(self, name: str) -> StaticDevicePlugin:
        """The plugin of an offered resource; it is served once it is in the lists of :meth:`update`."""
        served = self._served.get(name)
        return self._make_plugin(name) if served is None else served.plugin

    def update(
        self, lists: Mapping[str, tuple[StaticDevicePlugin, tuple[Device, ...]]], held: Collection[str]
    ) -> float | None:
        """Serves exactly these resources with these lists.

        Args:
            lists: plugin and list of each offered resource.
            held: resources of which pods hold devices; they are served until the pods end, with an empty list.

        Returns:
            Seconds until the next call is due even if nothing changes; ``None`` if none is due.
        """
        now = self._clock.monotonic()
        for name, (plugin, devices) in lists.items():
            plugin.set_list(devices)
            served = self._served.get(name)
            if served is None:
                self._served[name] = _Served(plugin, self._start(name, plugin), now)
            elif served.retired:
                served.begin(now, retired=False)
        for name in held:
            if name not in self._served:
                plugin = self._make_plugin(name)
                self._served[name] = _Served(plugin, self._start(name, plugin), now)
                self._served[name].retired = True
        return self._retire([name for name in self._served if name not in lists], held, now)

    def _retire(self, names: list[str], held: Collection[str], now: float) -> float | None:
        """Empties the lists of resources that are gone, and ends those whose empty list kubelet has counted."""
        waits = []
        for name in names:
            served = self._served[name]
            if not served.retired:
                served.plugin.set_list(())
                served.begin(now, retired=True)
            wait = served.seconds_left(now)
            if wait and served.plugin.is_streaming:
                waits.append(wait)
            elif name not in held:
                self._end(name)
        return min(waits, default=None)

    def _make_plugin(self, resource: str) -> StaticDevicePlugin:
        assert self._host is not None, "a resource is served before start()"
        return StaticDevicePlugin(resource, self._host)

    def _start(self, name: str, plugin: StaticDevicePlugin) -> "asyncio.Task[None]":
        assert self._group is not None, "a resource is served before start()"
        return self._group.create_task(self._serve(plugin, self._ending.get(name)), name=f"plugin {name}")

    def _end(self, name: str) -> None:
        task = self._served.pop(name).task
        self._refused.pop(name, None)
        self._ending[name] = task
        task.add_done_callback(lambda _: self._remove_ending(name, task))
        task.cancel()

    def _remove_ending(self, name: str, task: "asyncio.Task[None]") -> None:
        if self._ending.get(name) is task:
            del self._ending[name]

    async def _serve(self, plugin: StaticDevicePlugin, before: "asyncio.Task[None] | None") -> None:
        """Serves until cancelled; one plugin of a resource at a time."""
        if before is not None:
            await asyncio.wait({before})
        while True:
            try:
                await self._kubelet.serve(plugin)
            except PluginError as error:
                self._refused[plugin.resource_name] = str(error)
                self._changes.notify(Fact.LISTS)
                _log.warning("%s, again in %.0f s", error, REFUSED_PAUSE)
            await self._clock.sleep(REFUSED_PAUSE)


#: Merges a patch into the Node's status.
PatchStatus = Callable[[Mapping[str, Any]], Awaitable[object]]

#: Seconds after which a resource without a plugin may be removed: kubelet's grace period of 5 min
#: (``endpointStopGracePeriod``) and some rounds of its node status, each 10 s.
GRACE = 360.0
#: Seconds before a removal that failed is tried again.
RETRY = 30.0


#: Seconds from a lower amount on the Node until a pod that kube-scheduler had placed before has reached kubelet.
ARRIVAL = 1.0
#: Times that an amount is lowered which kubelet has raised again meanwhile: it writes its own once in 10 s.
_LOWERED_TIMES = 3
#: Seconds within which the cards of one layout are closed together.
_GATHERED = 0.05


def stale_resources(node: Node, former: Mapping[str, float], served: Collection[str], now: float) -> tuple[str, ...]:
    """Returns the resources to be removed from a node's status.

    Args:
        node: the Node as last seen.
        former: when each resource that is no longer offered was last offered, or last removed; seconds since 1970.
        served: resources that a plugin serves now.
        now: seconds since 1970.
    """
    shown = {**node.status.allocatable, **node.status.capacity}
    return tuple(
        sorted(
            name
            for name, since in former.items()
            if name not in served and now - since >= GRACE and shown.get(name) == "0"
        )
    )


def removal_patch(names: Iterable[str]) -> dict[str, Any]:
    """Returns the merge patch of a node's status that removes resources."""
    gone = dict.fromkeys(names)
    return {"status": {"capacity": gone, "allocatable": gone}}


class ClosingDevices:
    """Devices that are about to be fenced: all that are closed within a moment are closed together.

    Args:
        lower: lowers the Node's amounts by these devices; returns true if an amount was higher.
        clock: for waits.

    Attributes:
        devices: UUIDs of those that are closed now, or are about to be.
        closed: those to which no pod is on its way. They count as fenced until all of them are, so that no amount
            between is published.
    """

    def __init__(self, lower: Callable[[frozenset[str]], Awaitable[bool]], clock: Clock) -> None:
        self.devices: frozenset[str] = frozenset()
        self.closed: frozenset[str] = frozenset()
        self._lower = lower
        self._clock = clock
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def close(self, devices: frozenset[str]) -> None:
        """Returns when devices can be fenced: no pod is on its way to them."""
        self.devices |= devices
        self._waiting += 1
        try:
            async with self._turn:
                if not devices <= self.closed:
                    await self._close_all()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.devices = self.closed = frozenset()

    async def _close_all(self) -> None:
        await self._clock.sleep(_GATHERED)
        for _ in range(_LOWERED_TIMES):
            devices = self.devices
            if not await self._lower(devices):
                break
            await self._clock.sleep(ARRIVAL)
        self.closed = devices


class AdvertisedNames:
    """The resources that this node's agents have offered, on disk; removes the former ones from the node.

    Args:
        path: the file.
        node: the Node as last seen; ``None`` while there is none.
        patch_status: merges a patch into the Node's status; raises ApiError or ConnectionError.
        clock: the time.

    Attributes:
        clock: the same.
    """

    def __init__(self, path: Path, node: Callable[[], Node | None], patch_status: PatchStatus, clock: Clock) -> None:
        self._file: StateFile[dict[str, float | None]] = StateFile(path, dict[str, float | None])
        #: By name: time since which it is no longer offered; ``None`` while it is offered.
        self._ended = self._file.load() or {}
        self._node = node
        self._patch_status = patch_status
        self.clock = clock
        self._next = 0.0
        #: How often the amounts were lowered for the next change of the lists, and when it can be made.
        self._lowered, self._cut_at = 0, 0.0

    def allocatable(self) -> Mapping[str, str] | None:
        """The allocatable resources of the Node as last seen; ``None`` while there is no Node."""
        node = self._node()
        return None if node is None else node.status.allocatable

    @property
    def known_resources(self) -> frozenset[str]:
        """Every resource that was ever offered and may still be on the node."""
        return frozenset(self._ended)

    def set_advertised(self, names: Collection[str]) -> None:
        """Sets the present resources; earlier ones that are not among them are former from now on."""
        now = self.clock.now()
        ended = {name: now for name, since in self._ended.items() if since is None and name not in names}
        self._ended |= ended | dict.fromkeys(names)
        self._save()

    async def remove_stale(self, served: Collection[str]) -> float | None:
        """Removes the former resources whose time has come.

        Args:
            served: resources that a plugin serves now, on either side of the node.

        Returns:
            Seconds until the next removal may be due; ``None`` if there is nothing to wait for.
        """
        node, now = self._node(), self.clock.now()
        if node is None:
            return None
        former = {name: since for name, since in self._ended.items() if since is not None}
        names = stale_resources(node, former, served, now)
        if names and now >= self._next:
            self._next = now + RETRY
            try:
                await self._patch_status(removal_patch(names))
            except (ApiError, ConnectionError, TimeoutError) as error:
                _log.warning("%s cannot be removed from the node, again in %.0f s: %s", ", ".join(names), RETRY, error)
                return RETRY
            # If the name comes back, that is after another grace period.
            self._ended |= dict.fromkeys(names, now)
            self._save()
        shown = [since for name, since in former.items() if name not in served and name in node.status.capacity]
        return min((max(RETRY, since + GRACE - now) for since in shown), default=None)

    async def seconds_until_cut(self, counts: Mapping[str, int]) -> float:
        """Lowers allocatable amounts to these counts; returns the seconds until all pods placed before have arrived.

        Returns 0 once for a change of the lists, whose next call begins with another one.
        """
        now = self.clock.monotonic()
        if now >= self._cut_at:
            if self._lowered < _LOWERED_TIMES and await self.lower_allocatable(counts):
                self._lowered, self._cut_at = self._lowered + 1, now + ARRIVAL
            else:
                self._lowered = 0
        return max(0.0, self._cut_at - now)

    async def withdraw(self, resources: Collection[str]) -> None:
        """Lowers allocatable amounts to 0; returns when all pods placed before have arrived."""
        for _ in range(_LOWERED_TIMES):
            if not await self.lower_allocatable(dict.fromkeys(resources, 0)):
                return
            await self.clock.sleep(ARRIVAL)

    async def lower_allocatable(self, counts: Mapping[str, int]) -> bool:
        """Lowers allocatable amounts to these counts; kubelet does it seconds later, so a failure is only logged.

        Returns:
            True if an amount was lowered.
        """
        shown = self.allocatable() or {}
        lower = {name: str(count) for name, count in counts.items() if count_or_zero(shown.get(name, "0")) > count}
        if not lower:
            return False
        try:
            await self._patch_status({"status": {"allocatable": lower}})
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("%s are not lowered before kubelet does it: %s", ", ".join(sorted(lower)), error)
            return False
        return True

    def _save(self) -> None:
        self._file.save_if_possible(self._ended, "names of resources, which may stay on the node with 0, are not kept")
