"""Values of sharing: GPUs, MIG devices, and the device plugin's entries made of them."""

from collections.abc import Mapping

import msgspec

from tessera.api.problems import Notice
from tessera.api.sharing.kinds import SharingKind


class MigDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A compute instance, which a container sees as its device.

    Attributes:
        uuid: ``MIG-`` and a UUID.
        index: among the card's MIG devices, the ``1`` of ``0:1``.
        profile: ``1g.5gb``; ``1c.3g.20gb`` when it does not fill its GPU instance.
        gi_id: its GPU instance, for references in the old form.
        ci_id: its own id there.
    """

    uuid: str
    index: int
    profile: str
    gi_id: int = -1
    ci_id: int = -1


class GpuDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A card that is offered to containers; cards that give slices on demand are not among them.

    Attributes:
        uuid: ``GPU-`` and a UUID.
        index: the driver's.
        product: NVML's product name, ``NVIDIA A100-SXM4-40GB``.
        compute_capability: ``(8, 0)``.
        mig_enabled: MIG mode is on.
        mig_devices: its MIG devices, by index.
    """

    uuid: str
    index: int
    product: str
    compute_capability: tuple[int, int]
    mig_enabled: bool = False
    mig_devices: tuple[MigDevice, ...] = ()


class AdvertisedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the device plugin's list: a whole device, or one share of it.

    Attributes:
        id: kubelet's name for it: the UUID, followed by ``::n`` for a share.
        uuid: of the card or MIG device that a container gets.
        gpu: UUID of the card.
        index: ``0``, or ``0:1`` for a MIG device.
        profile: of a MIG device, else empty.
        replicas: number of shares of the device; 1 if it is not shared.
        kind: how it is shared.
    """

    id: str
    uuid: str
    gpu: str
    index: str
    profile: str = ""
    replicas: int = 1
    kind: SharingKind = SharingKind.NONE

    @property
    def shared(self) -> bool:
        """True if other containers may have the same device."""
        return self.kind is not SharingKind.NONE


class AdvertisedResource(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of a node.

    Attributes:
        name: the extended resource.
        devices: its entries, in the order of index and share.
        one_per_request: True if a container that asks for more than one share is refused.
    """

    name: str
    devices: tuple[AdvertisedDevice, ...]
    one_per_request: bool = False


class Advertisement(msgspec.Struct, frozen=True, kw_only=True):
    """All that a node advertises.

    Attributes:
        resources: by name, sorted.
        notices: notices on entries of the profile that match nothing on this node.
    """

    resources: Mapping[str, AdvertisedResource]
    notices: tuple[Notice, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Returns the capacity that kubelet will show, by resource."""
        return {name: len(each.devices) for name, each in self.resources.items()}


class RequestRefused(ValueError):  # noqa: N818 - says what happened to the request
    """Kubelet asks for devices in a way that this resource does not allow."""


def device_of(device_id: str) -> str:
    """Returns the UUID in an entry's id: the part before ``::``."""
    return device_id.partition("::")[0]


def check_request(offered: AdvertisedResource, ids: tuple[str, ...]) -> None:
    """Checks that a container can have these entries together.

    Raises:
        RequestRefused: an entry is not advertised, or there are several shares and only one is allowed.
    """
    known = {device.id: device for device in offered.devices}
    for each in ids:
        if each not in known:
            raise RequestRefused(f"{offered.name}: unknown device {each}; it may have been removed since it was listed")
    if offered.one_per_request and len(ids) > 1 and any(known[each].shared for each in ids):
        raise RequestRefused(
            f"{offered.name}: invalid allocation request: maximum request size for shared resources is 1; found"
            f" {len(ids)}. Several shares give no larger part of a card: ask for one"
        )
