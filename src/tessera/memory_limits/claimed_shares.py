"""Shares of cards that ResourceClaims have, in the form of those by limits: the memory watch treats both alike."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tessera.agent.inventory.device_state import DeviceUser
from tessera.agent.inventory.sliceable_gpus import SliceableGpus, SlicePosition
from tessera.api.names import PodUid
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, Advertisement
from tessera.kube.resources import Pod
from tessera.mig.names import CLAIMED_SHARE


def add_offer(offer: Advertisement, cards: SliceableGpus) -> Advertisement:
    """Returns an offer with the cards that claims get in shares."""
    devices = tuple(
        AdvertisedDevice(
            id=card.uuid,
            uuid=card.uuid,
            gpu=card.uuid,
            index=str(card.info.index),
            replicas=card.shares.count,
            kind=card.shares.kind,
        )
        for card in cards.gpus
        if card.shares is not None
    )
    if not devices:
        return offer
    shared = AdvertisedResource(name=CLAIMED_SHARE, devices=devices)
    return msgspec.structs.replace(offer, resources={**offer.resources, CLAIMED_SHARE: shared})


def add_users(
    users: Mapping[str, Sequence[DeviceUser]], held: Iterable[tuple[PodUid, SlicePosition]], pods: Iterable[Pod]
) -> Mapping[str, Sequence[DeviceUser]]:
    """Returns the users of devices with the pods that have shares of cards by claims."""
    living = {PodUid(pod.metadata.uid): pod.metadata for pod in pods}
    found = {uuid: list(each) for uuid, each in users.items()}
    for uid, position in held:
        meta = living.get(uid)
        if meta is not None and position.profile == CLAIMED_SHARE:
            user = DeviceUser(
                pod=uid,
                namespace=meta.namespace,
                name=meta.name,
                container="",
                resource=CLAIMED_SHARE,
                ids=(f"{position.gpu}::{position.start}",),
            )
            found.setdefault(position.gpu, []).append(user)
    return found
