"""Chooses a container's shares: spread over the devices, or packed onto few.

Kubelet asks for a preference among what is free. One entry after the other is taken: ``distributed`` from the device
that has the fewest shares in use, ``packed`` from the one that has the most. Equal ones are told apart by the use of
their card, so MIG devices, which have one share each, are spread over or packed onto cards too; then by what this
request has taken from them already, then by their order. Whole cards that are not shared are chosen by their links,
elsewhere.
"""

from collections import Counter
from collections.abc import Collection, Sequence

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
    """The entries that a container should get.

    Args:
        devices: all entries of the resource, in the order of index and share.
        available: ids of those that are free; unknown ones are passed over.
        must_include: ids that are part of the answer in any case.
        size: how many the container gets.
        policy: spread or pack.

    Returns:
        ``must_include``, and then the preferred ones in the order in which they were chosen.

    Raises:
        NotEnough: fewer are free than are needed.
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
