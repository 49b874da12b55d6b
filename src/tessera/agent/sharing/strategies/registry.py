"""All sharing strategies, and the questions that the static side asks them for a whole offer. Pure.

To add a strategy: its kind and its rules in :mod:`tessera.api.sharing.kinds`, its class in a module of this folder, its
row in :data:`STRATEGIES`, and its test.
"""

from collections.abc import Iterable, Mapping

import msgspec

from tessera.agent.base.desired_config import ContainerEdits, ServicePlan
from tessera.agent.sharing.strategies.interface import NodeService, SharingStrategy
from tessera.agent.sharing.strategies.mps import Mps
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, Advertisement
from tessera.api.sharing.kinds import SharingKind
from tessera.nvml.interface import GpuInfo


class WholeDevice:
    """Whole cards and whole MIG devices: one container has the device, and needs nothing besides."""

    def plan_service(self, _resource: AdvertisedResource, _cards: Mapping[str, GpuInfo], /) -> None:
        """No process serves a whole device."""

    def not_ready_reason(self, _resource: str, _device: AdvertisedDevice, _service: NodeService, /) -> str:
        """A whole device can be used at once."""
        return ""

    def container_edits(self, _resource: str, _service: NodeService, /) -> None:
        """A container sees its device, and no more is needed."""


class TimeSlices(WholeDevice):
    """Time slices: the containers of a device take turns on it, as the driver schedules them.

    The driver shares a device among processes by itself, so a share needs no process and no edits. Nothing limits the
    memory of a share on the card; :mod:`tessera.agent.memory` watches it.
    """


STRATEGIES: Mapping[SharingKind, SharingStrategy] = {
    SharingKind.NONE: WholeDevice(),
    SharingKind.TIME_SLICING: TimeSlices(),
    SharingKind.MPS: Mps(),
}


def plan_services(
    offer: Advertisement,
    cards: Mapping[str, GpuInfo],
    strategies: Mapping[SharingKind, SharingStrategy] = STRATEGIES,
) -> dict[str, ServicePlan]:
    """Returns the processes that an offer needs, by resource; empty if no strategy needs one.

    Args:
        offer: the advertised entries.
        cards: the node's cards by UUID. A card that cannot be read, or is missing in the mapping, gets no process.
        strategies: the strategy of each kind.

    Raises:
        StrategyImpossible: the cards cannot be shared as the offer divides them.
    """
    plans: dict[str, ServicePlan] = {}
    for name, offered in sorted(offer.resources.items()):
        usable = [each for each in offered.devices if each.gpu in cards and cards[each.gpu].readable]
        for kind in dict.fromkeys(each.kind for each in usable):
            own = tuple(each for each in usable if each.kind is kind)
            plan = strategies[kind].plan_service(msgspec.structs.replace(offered, devices=own), cards)
            if plan is not None:
                plans[name] = plan
    return plans


class NodeStrategies:
    """The strategies of a node, and the processes that serve their entries.

    Args:
        service: the node's processes that serve shares.
        by_kind: the strategy of each kind.

    Attributes:
        by_kind: the strategy of each kind.
    """

    def __init__(self, service: NodeService, by_kind: Mapping[SharingKind, SharingStrategy] = STRATEGIES) -> None:
        self.by_kind = by_kind
        self._service = service

    def set_plans(self, plans: Mapping[str, ServicePlan]) -> None:
        """Sets the processes that must run, by resource."""
        self._service.set_plans(plans)

    def not_ready_reasons(self, offer: Advertisement) -> dict[tuple[str, str], str]:
        """Returns the entries that do not serve containers yet, by resource and id, each with the reason."""
        return {
            (name, each.id): reason
            for name, offered in offer.resources.items()
            for each in offered.devices
            if (reason := self.by_kind[each.kind].not_ready_reason(name, each, self._service))
        }

    def container_edits(self, resource: str, devices: Iterable[AdvertisedDevice]) -> ContainerEdits | None:
        """Returns the edits of a container with these entries of one resource, besides its devices."""
        kinds = dict.fromkeys(each.kind for each in devices)
        edits = (self.by_kind[kind].container_edits(resource, self._service) for kind in kinds)
        return next((each for each in edits if each is not None), None)
