"""The ways to share a device, and the questions that the static side asks them for a whole offer. Pure.

A strategy is the agent's side of one kind of sharing (:mod:`tessera.api.sharing.profile`): the process that must serve
its shares, the moment from which they can be used, and what their containers get besides the devices. It has no state.
A :class:`NodeService` has the processes; a strategy without processes ignores it.

To add a strategy: its kind and its rules in :mod:`tessera.api.sharing.profile`, its class here, its row in
:data:`STRATEGIES`, and its test.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import msgspec

from tessera.agent.base.settings import ContainerEdits, ServicePlan
from tessera.api.sharing.devices import SHARING_RULES, AdvertisedDevice, AdvertisedResource, Advertisement, SharingKind
from tessera.api.sharing.profile import ClientShare, client_share
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


class Mps:
    """MPS: a daemon of NVIDIA lets several containers run kernels on one card at the same time.

    One control daemon serves all cards of one resource, since a container that asks for two shares may get them on two
    cards and can have only one pipe directory. Its memory limit is set for each card. Its thread share is one number
    for all of them (NVIDIA MPS documentation, ``set_default_active_thread_percentage``): the share of the card with
    most shares, so that no client takes more than a share.
    """

    def plan_service(self, resource: AdvertisedResource, cards: Mapping[str, GpuInfo], /) -> ServicePlan | None:
        """Returns the daemon of a resource, with the share of one client on each card.

        Raises:
            StrategyImpossible: a card has more shares than MPS serves clients, or less memory than shares.
        """
        shared = {device.gpu: device for device in resource.devices}
        shares = {gpu: _share(resource.name, device, cards[gpu]) for gpu, device in shared.items()}
        return ServicePlan(shares, max(device.replicas for device in shared.values()))

    def not_ready_reason(self, resource: str, device: AdvertisedDevice, service: NodeService, /) -> str:
        """A share can be used while the daemon serves its card."""
        if service.ready(resource, device.gpu):
            return ""
        return f"its MPS daemon is not ready: {service.problem(resource)}"

    def container_edits(self, resource: str, service: NodeService, /) -> ContainerEdits:
        """A container gets the daemon's pipe directory and shared memory."""
        return service.container_edits(resource)


def _share(resource: str, device: AdvertisedDevice, card: GpuInfo) -> ClientShare:
    at = f"{resource}: card {device.gpu}"
    clients = SHARING_RULES[device.kind].clients
    most = device.replicas if clients is None else clients.of(card.compute_capability)
    if device.replicas > most:
        major, minor = card.compute_capability
        raise StrategyImpossible(
            f"{at} is to have {device.replicas} shares; MPS serves {most} clients at compute capability"
            f" {major}.{minor}: lower `replicas` in the sharing profile"
        )
    share = client_share(card.memory_mib, device.replicas)
    if share.memory_mib < 1:
        raise StrategyImpossible(
            f"{at} has {card.memory_mib} MiB, too little for {device.replicas} shares: each needs 1 MiB or more"
        )
    return share


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
    memory of a share on the card; :mod:`tessera.memory_limits` watches it.
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


def drop_cards(plans: Mapping[str, ServicePlan], cards: Collection[str]) -> dict[str, ServicePlan]:
    """Returns the plans without these cards; drops a plan that has no card left."""
    left = {
        resource: {card: share for card, share in plan.devices.items() if card not in cards}
        for resource, plan in plans.items()
    }
    return {resource: ServicePlan(shares, plans[resource].replicas) for resource, shares in left.items() if shares}
