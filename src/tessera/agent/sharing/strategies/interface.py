"""The interface of a sharing strategy, and what a strategy needs of its surroundings.

A strategy is the agent's side of one kind of sharing (:mod:`tessera.api.sharing.kinds`): the process that must serve
its shares, the moment from which they can be used, and what their containers get besides the devices. It has no state.
A :class:`NodeService` has the processes; a strategy without processes ignores it.
"""

from collections.abc import Mapping
from typing import Protocol

from tessera.agent.base.desired_config import ContainerEdits, ServicePlan
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource
from tessera.nvml.interface import GpuInfo


class StrategyImpossible(ValueError):  # noqa: N818 - says what became of the plan
    """The cards cannot be shared as a profile divides them; the text names the resource, the card and the remedy."""


class NodeService(Protocol):
    """The processes of the node that serve shares, at most one for each resource.

    MPS is the only strategy that needs them; see :class:`tessera.agent.mps.daemons.MpsDaemons`.
    """

    def set_plans(self, plans: Mapping[str, ServicePlan], /) -> None:
        """Sets the processes that must run, by resource."""
        ...

    def ready(self, resource: str, gpu: str, /) -> bool:
        """True if the process of a resource serves clients of a card."""
        ...

    def problem(self, resource: str, /) -> str:
        """Reason that the process of a resource does not serve."""
        ...

    def container_edits(self, resource: str, /) -> ContainerEdits:
        """Edits that a client of the resource's process needs."""
        ...


class SharingStrategy(Protocol):
    """One kind of sharing."""

    def plan_service(self, resource: AdvertisedResource, cards: Mapping[str, GpuInfo], /) -> ServicePlan | None:
        """Returns the process that must serve a resource; ``None`` if the strategy needs none.

        Args:
            resource: the resource, with the entries of this strategy that lie on usable cards.
            cards: the node's cards by UUID.

        Raises:
            StrategyImpossible: the cards cannot be shared in this way.
        """
        ...

    def not_ready_reason(self, resource: str, device: AdvertisedDevice, service: NodeService, /) -> str:
        """Returns the reason that an entry does not serve containers yet; empty if it does."""
        ...

    def container_edits(self, resource: str, service: NodeService, /) -> ContainerEdits | None:
        """Returns the edits that a container needs besides its devices; ``None`` if it needs none."""
        ...
