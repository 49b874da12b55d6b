"""Kubelet's end of a device plugin.

Whoever plays kubelet (the lab, tests) drives plugins through :class:`PluginClient`. :class:`GrpcPluginClient` reaches a
plugin as kubelet does, over its unix socket; :class:`tessera.kubelet.direct.DirectPluginClient` reaches one in the same
process. Both answer alike, so a simulated kubelet has one code path.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from tessera.kubelet.seam import Allocation, Device, PluginOptions, PreferredRequest


class PluginClient(Protocol):
    """A registered device plugin, as kubelet calls it."""

    async def options(self) -> PluginOptions:
        """GetDevicePluginOptions.

        Raises:
            ConnectionError: the plugin does not answer.
        """
        ...

    def list_and_watch(self) -> AsyncIterator[tuple[Device, ...]]:
        """Full device lists until the plugin ends.

        Raises:
            ConnectionError: the plugin went away; all its devices count as unhealthy.
        """
        ...

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> list[tuple[str, ...]]:
        """One list of device ids per request. Call it only if the plugin's options offer it.

        Raises:
            PluginError: the plugin refused.
            ConnectionError: the plugin does not answer.
        """
        ...

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[Allocation]:
        """One answer per container's device ids.

        Raises:
            PluginError: the plugin refused.
            ConnectionError: the plugin does not answer.
        """
        ...

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        """Returns when the container may start, within :data:`~tessera.kubelet.seam.PRE_START_TIMEOUT` seconds.

        Raises:
            PluginError: the plugin refused, or the time is over.
            ConnectionError: the plugin does not answer.
        """
        ...

    async def close(self) -> None:
        """Hangs up; running calls end with ConnectionError."""
        ...
