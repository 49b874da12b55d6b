"""The kinds of sharing, and the rules of a profile for each of them.

A kind has one row in :data:`SHARING_RULES`. The parser, the advertisement and ``tessera config check`` read the row;
what a container of the kind gets is its strategy's (:mod:`tessera.agent.sharing.strategies`).

Sources: NVIDIA's device plugin (``api/config/v1``) for keys and defaults; NVIDIA's MPS documentation for 16 client
contexts per card before Volta and 48 from Volta on, and for whole cards only. The plugin gives compute capability 7.0,
which is Volta, 16 clients; here it has the 48 that the hardware has.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

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
