"""The MPS daemons that an offer needs. Pure.

One control daemon serves all GPUs of one resource, since a container that asks for two shares may get them on two GPUs
and can have only one pipe directory. Its memory limit is set for each GPU, its thread share is one number for all of
them (NVIDIA MPS documentation, ``set_default_active_thread_percentage``): the share of the GPU with most shares, so
that no client takes more than a share.
"""

from collections.abc import Mapping

from tessera.agent.base.desired_config import MpsPlan
from tessera.api.sharing.devices import AdvertisedDevice, Advertisement
from tessera.api.sharing.profile import SharingKind
from tessera.api.sharing.shares import ClientShare, client_share, most_clients
from tessera.nvml.interface import GpuInfo


class PlanImpossible(ValueError):  # noqa: N818 - says what became of the plan
    """MPS does not serve so many clients of a card, or a card has no memory for them."""


def plan_daemons(offer: Advertisement, cards: Mapping[str, GpuInfo]) -> dict[str, MpsPlan]:
    """Returns the daemons that an offer needs, by resource; empty if it shares nothing by MPS.

    Args:
        offer: the advertised entries.
        cards: the node's cards by UUID. A card that is lost or missing here gets no daemon.

    Raises:
        PlanImpossible: a card has more shares than MPS serves clients, or less memory than shares.
    """
    plans: dict[str, MpsPlan] = {}
    for name, offered in sorted(offer.resources.items()):
        here = (each for each in offered.devices if each.gpu in cards and not cards[each.gpu].lost)
        shared = {each.gpu: each for each in here if each.kind is SharingKind.MPS}
        if shared:
            shares = {gpu: _share(name, device, cards[gpu]) for gpu, device in shared.items()}
            plans[name] = MpsPlan(shares, max(device.replicas for device in shared.values()))
    return plans


def _share(resource: str, device: AdvertisedDevice, card: GpuInfo) -> ClientShare:
    at = f"{resource}: card {device.gpu}"
    most = most_clients(card.compute_capability)
    if device.replicas > most:
        major, minor = card.compute_capability
        raise PlanImpossible(
            f"{at} is to have {device.replicas} shares; MPS serves {most} clients at compute capability"
            f" {major}.{minor}: lower `replicas` in the sharing profile"
        )
    share = client_share(card.memory_mib, device.replicas)
    if share.memory_mib < 1:
        raise PlanImpossible(
            f"{at} has {card.memory_mib} MiB, too little for {device.replicas} shares: each needs 1 MiB or more"
        )
    return share
