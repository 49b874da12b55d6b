"""Limits of MPS: the number of clients of a card, and the share of each.

Sources: NVIDIA's MPS documentation (16 client contexts per device before Volta, 48 from Volta on) and the device
    plugin's MPS daemon (limits per client are the card's memory and threads divided by the replicas). The plugin gives
    compute capability 7.0, which is Volta, 16 clients; here it has the 48 that the hardware has.
"""

import msgspec

_VOLTA = (7, 0)


class ClientShare(msgspec.Struct, frozen=True):
    """The memory and compute of one client of a shared card.

    Attributes:
        memory_mib: device memory in MiB, the pinned memory limit of the daemon.
        thread_percent: of the card's threads, 1 to 100.
    """

    memory_mib: int
    thread_percent: int


def most_clients(compute_capability: tuple[int, int]) -> int:
    """The most clients of one card."""
    return 48 if compute_capability >= _VOLTA else 16


def client_share(memory_mib: int, replicas: int) -> ClientShare:
    """An equal share of a card, rounded down as the daemon takes whole numbers.

    Args:
        memory_mib: of the whole card.
        replicas: number of shares, 1 or more.
    """
    return ClientShare(memory_mib // replicas, max(1, 100 // replicas))
