"""Shares of devices: the choice for a container, and the limits of MPS.

Kubelet asks for preferred entries among the free ones. The function takes one entry after another: ``distributed`` from
the device with the fewest shares in use, ``packed`` from the one with the most. Ties are broken by the use of the card,
so MIG devices, which have one share each, are also spread over or packed onto cards; then by the entries that this
request has already taken; then by order. Unshared whole cards are chosen by their links, elsewhere.

Source of an MPS client's limits: the device plugin's MPS daemon, which divides the card's memory and threads by the
replicas.
"""

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from tessera.api.sharing.devices import AdvertisedDevice
from tessera.api.sharing.profile import AllocationPolicy


class NotEnoughShares(ValueError):  # noqa: N818 - says what is wrong
    """Fewer entries are free than asked for."""


def prefer_shares(
    devices: Sequence[AdvertisedDevice],
    available: Collection[str],
    must_include: Sequence[str],
    size: int,
    policy: AllocationPolicy,
) -> tuple[str, ...]:
    """Returns the entries that a container should get.

    Args:
        devices: all entries of the resource, in the order of index and share.
        available: ids of the free entries; unknown ones are ignored.
        must_include: ids that the answer must contain.
        size: the number of entries that the container gets.
        policy: spread or pack.

    Returns:
        ``must_include``, and then the preferred ones in the order in which they were chosen.

    Raises:
        NotEnoughShares: fewer entries are free than needed.
    """
    candidates = set(available).difference(must_include)
    free = [device for device in devices if device.id in candidates]
    needed = size - len(must_include)
    if len(free) < needed:
        names = f"{len(free)} are free beside the {len(must_include)} that must be part of it"
        raise NotEnoughShares(f"not enough available devices: {size} are asked for, {names}")
    in_use = Counter(device.uuid for device in devices) - Counter(device.uuid for device in free)
    on_card = Counter(device.gpu for device in devices) - Counter(device.gpu for device in free)
    taken: Counter[str] = Counter()
    sign = 1 if policy is AllocationPolicy.DISTRIBUTED else -1

    def rank(one: AdvertisedDevice) -> tuple[int, int, int, int]:
        return (sign * in_use[one.uuid], sign * on_card[one.gpu], taken[one.uuid], taken[one.gpu])

    chosen = []
    for _ in range(max(0, needed)):
        best = min(free, key=rank)
        free.remove(best)
        chosen.append(best.id)
        in_use[best.uuid] += 1
        on_card[best.gpu] += 1
        taken.update({best.uuid, best.gpu})
    return (*must_include, *chosen)


class ClientShare(msgspec.Struct, frozen=True):
    """The memory and compute of one client of a shared card.

    Attributes:
        memory_mib: device memory in MiB, the pinned memory limit of the daemon.
        thread_percent: of the card's threads, 1 to 100.
    """

    memory_mib: int
    thread_percent: int


def client_share(memory_mib: int, replicas: int) -> ClientShare:
    """An equal share of a card, rounded down as the daemon takes whole numbers.

    Args:
        memory_mib: of the whole card.
        replicas: number of shares, 1 or more.
    """
    return ClientShare(memory_mib // replicas, max(1, 100 // replicas))
