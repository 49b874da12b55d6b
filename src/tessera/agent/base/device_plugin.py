"""The part of a device plugin that is the same for slices and for static devices: its name, its options, its list."""

from collections.abc import AsyncIterator, Callable, Sequence

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.kubelet.interfaces import Device, PluginOptions


class ResourcePlugin:
    """The list of one resource; see :class:`tessera.kubelet.interfaces.DevicePlugin` for what a plugin adds.

    Args:
        resource: the extended resource.
        devices: returns the list to advertise now.
        changes: announces that the list may have changed.
        on_listed: called when kubelet has read a list, and when it listens no more.
    """

    def __init__(
        self,
        resource: str,
        *,
        devices: Callable[[], Sequence[Device]],
        changes: ChangeNotifier,
        on_listed: Callable[[], None] = lambda: None,
    ) -> None:
        self._resource = resource
        self._devices = devices
        self._changes = changes
        self._on_listed = on_listed
        #: Connections on which kubelet listens. More than one while kubelet replaces one by the next.
        self._streams = 0
        #: The list that kubelet read last; ``None`` while it does not listen.
        self._last_read: Sequence[Device] | None = None

    @property
    def resource_name(self) -> str:
        """The extended resource."""
        return self._resource

    @property
    def options(self) -> PluginOptions:
        """Both optional calls are served."""
        return PluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    @property
    def is_streaming(self) -> bool:
        """True if kubelet listens to the list."""
        return self._streams > 0

    @property
    def is_listed(self) -> bool:
        """True if kubelet listens and has read the newest list."""
        return self.is_streaming and self._last_read == self._devices()

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        """Yields the list at once, and again whenever it differs."""
        sent: Sequence[Device] | None = None
        self._streams += 1
        try:
            while True:
                count = self._changes.count
                devices = self._devices()
                if devices != sent:
                    sent = devices
                    yield devices
                    # The reader asks for the next list once it has read this one.
                    self._last_read = devices
                    self._on_listed()
                await self._changes.wait(count)
        finally:
            self._streams -= 1
            if not self._streams:
                self._last_read = None
                self._on_listed()
