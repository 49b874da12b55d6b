"""MPS: a daemon of NVIDIA lets several containers run kernels on one card at the same time.

One control daemon serves all cards of one resource, since a container that asks for two shares may get them on two
cards and can have only one pipe directory. Its memory limit is set for each card. Its thread share is one number for
all of them (NVIDIA MPS documentation, ``set_default_active_thread_percentage``): the share of the card with most
shares, so that no client takes more than a share.
"""

from collections.abc import Mapping

from tessera.agent.base.desired_config import ContainerEdits, ServicePlan
from tessera.agent.sharing.strategies.interface import NodeService, StrategyImpossible
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource
from tessera.api.sharing.kinds import SHARING_RULES
from tessera.api.sharing.shares import ClientShare, client_share
from tessera.nvml.interface import GpuInfo


class Mps:
    """See :class:`tessera.agent.sharing.strategies.interface.SharingStrategy`."""

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
