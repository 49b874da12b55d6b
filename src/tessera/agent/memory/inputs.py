"""Inputs of the memory monitor from the rest of the agent: a protocol, and its implementation."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tessera.agent.base.node_objects import ApiMirror
from tessera.agent.inventory.device_users import DeviceUser, DeviceUsers
from tessera.api.sharing.devices import Advertisement
from tessera.kube.resources import Pod


class MemoryInputs(Protocol):
    """Inputs of the monitor from the rest of the agent."""

    @property
    def offer(self) -> Advertisement:
        """The present offer of the static cards."""
        ...

    @property
    def api_reachable(self) -> bool:
        """True if the API server answers."""
        ...

    def live_pods(self) -> Sequence[Pod]:
        """The pods of the node that have not ended."""
        ...

    async def read_users(self) -> Mapping[str, Sequence[DeviceUser]]:
        """The containers that hold each device; raises ConnectionError if kubelet does not answer."""
        ...


class OfferSource(Protocol):
    """Offers the static devices to kubelet."""

    @property
    def offer(self) -> Advertisement:
        """The present offer of the static cards."""
        ...


class AgentInputs:
    """The inputs of a running agent.

    Args:
        advertiser: offers the static devices to kubelet.
        users: asks kubelet which containers hold which device.
        mirror: the node and its pods.
    """

    def __init__(self, advertiser: OfferSource, users: DeviceUsers, mirror: ApiMirror) -> None:
        self._advertiser = advertiser
        self._users = users
        self._mirror = mirror

    @property
    def offer(self) -> Advertisement:
        """See :attr:`MemoryInputs.offer`."""
        return self._advertiser.offer

    @property
    def api_reachable(self) -> bool:
        """See :attr:`MemoryInputs.api_reachable`."""
        return not self._mirror.nodes.reflector.failures

    def live_pods(self) -> Sequence[Pod]:
        """See :meth:`MemoryInputs.live_pods`."""
        return self._mirror.live_pods()

    async def read_users(self) -> Mapping[str, Sequence[DeviceUser]]:
        """See :meth:`MemoryInputs.read_users`."""
        return await self._users.read()
