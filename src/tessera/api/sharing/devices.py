"""The kinds of sharing, and what is shared: GPUs, MIG devices, and the device plugin's entries made of them.

A kind has one row in :data:`SHARING_RULES`, with the rules of a profile for it. The parser, the advertisement and
``tessera config check`` read the row; what a container of the kind gets is its strategy's
(:mod:`tessera.agent.sharing.strategies`).

Sources: NVIDIA's device plugin (``api/config/v1``) for keys and defaults; NVIDIA's MPS documentation for 16 client
contexts per card before Volta and 48 from Volta on, and for whole cards only. The plugin gives compute capability 7.0,
which is Volta, 16 clients; here it has the 48 that the hardware has.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

from tessera.api.problems import Notice

_MIB = 2**20
_VOLTA = (7, 0)


class SharingKind(Enum):
    """The kind of sharing of a device; values as in the label ``nvidia.com/gpu.sharing-strategy``."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


class ClientLimit(msgspec.Struct, frozen=True):
    """The most clients of one card, by its compute capability.

    Attributes:
        before_volta: cards below compute capability 7.0.
        from_volta: other cards.
    """

    before_volta: int
    from_volta: int

    def of(self, compute_capability: tuple[int, int]) -> int:
        """Returns the most clients of a card."""
        return self.from_volta if compute_capability >= _VOLTA else self.before_volta


class SharingRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one kind of sharing.

    Attributes:
        key: the block of the file below ``sharing``.
        title: its name for people.
        one_per_request: default of ``failRequestsGreaterThanOne``.
        whole_cards_only: True if MIG devices cannot be shared in this way.
        clients: the most shares of a card; ``None`` if only the list of kubelet limits them.
        memory_unit: bytes; the memory of one share is rounded down to a multiple of it.
        limits_threads: True if each share is limited to a part of the card's threads.
    """

    key: str
    title: str
    one_per_request: bool
    whole_cards_only: bool = False
    clients: ClientLimit | None = None
    memory_unit: int = 1
    limits_threads: bool = False

    def share_of_memory(self, total: int, replicas: int) -> int:
        """Returns the bytes of one share.

        Args:
            total: bytes of the whole device.
            replicas: number of shares, 1 or more.
        """
        return total // replicas // self.memory_unit * self.memory_unit


#: The rules of each kind, in order of precedence: if two blocks name one device, the first counts.
SHARING_RULES: Mapping[SharingKind, SharingRules] = {
    SharingKind.MPS: SharingRules(
        key="mps",
        title="MPS",
        one_per_request=True,
        whole_cards_only=True,
        clients=ClientLimit(16, 48),
        memory_unit=_MIB,
        limits_threads=True,
    ),
    SharingKind.TIME_SLICING: SharingRules(key="timeSlicing", title="time slices", one_per_request=False),
}


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
