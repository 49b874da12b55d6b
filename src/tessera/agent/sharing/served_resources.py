"""Serves resources to kubelet, each by a plugin and a task of its own.

A resource that stays keeps its plugin with a new list, so its count never drops meanwhile. A new resource is served
first, and the lists of resources that are gone are emptied only when kubelet has read the new one's: a node that
changes from cards to shares always has one of them. When kubelet has read an empty list, the serving of that resource
ends. As long as pods hold devices of it, it is served on with an empty list: kubelet does not restart a container whose
resource has no plugin.

Nothing in the protocol says that kubelet has counted a list. A list counts as counted :data:`HANDOVER` seconds after
kubelet has read it. A kubelet that does not answer delays a change by :data:`HANDOVER_TIMEOUT` seconds at most.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping

from tessera.agent.base.change_notifier import ChangeNotifier, Fact
from tessera.agent.sharing.device_plugin import AllocationHost, StaticDevicePlugin
from tessera.clock import Clock
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
        self._host: AllocationHost | None = None
        self._served: dict[str, _Served] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, str] = {}

    def start(self, group: asyncio.TaskGroup, host: AllocationHost) -> None:
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
        waits = [wait for each in self._served.values() if not each.retired and (wait := each.seconds_left(now))]
        for name in held:
            if name not in self._served:
                plugin = self._make_plugin(name)
                self._served[name] = _Served(plugin, self._start(name, plugin), now)
                self._served[name].retired = True
        gone = [name for name in self._served if name not in lists]
        if waits and any(not self._served[name].retired for name in gone):
            return min(waits)
        return self._retire(gone, held, now)

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
