"""Binds device IDs to slices. Pure.

Slices of one profile on one node are fungible until kubelet has picked. The scheduler counts, kubelet picks device IDs,
and the promise names positions; a *binding* ties them together per pod and lasts for the pod's life. Rules:

1.  An ID stays bound to the slice it was first bound to, so a restarted container, or an app container that takes over
    its init container's devices, finds the same slice.
2.  An ID that names the position of one of the pod's own slices is bound to that one.
3.  Other IDs get the pod's other slices of the profile in the order of the promise.
4.  No slice is bound to two IDs, and no ID to another pod's slice.
"""

from collections.abc import Iterable, Mapping, Sequence

from tessera.agent.inventory.positions import SlicePosition, parse_device_id
from tessera.kubelet.interfaces import PreferredRequest


class TooManyDevices(ValueError):  # noqa: N818 - the name says what is wrong
    """A pod holds more devices of a profile than slices were promised to it."""


def bind_devices(
    device_ids: Iterable[str], slices: Sequence[SlicePosition], known: Mapping[str, SlicePosition]
) -> dict[str, SlicePosition]:
    """Returns the pod's bindings after its containers were seen to hold ``device_ids``.

    Args:
        device_ids: IDs of any profiles; those bound already keep their slice.
        slices: the slices promised to the pod.
        known: its bindings so far; those to slices that it no longer has are dropped.

    Raises:
        TooManyDevices: no slice is left for an ID.
        ValueError: a text is not a device ID.
    """
    bound = {device: slice_ for device, slice_ in known.items() if slice_ in slices}
    asked = {device: parse_device_id(device) for device in device_ids if device not in bound}
    free = [slice_ for slice_ in slices if slice_ not in bound.values()]
    for device, position in asked.items():
        if position in free:
            bound[device] = position
            free.remove(position)
    for device, position in asked.items():
        if device not in bound:
            match = next((slice_ for slice_ in free if slice_.profile == position.profile), None)
            if match is None:
                held = sum(slice_.profile == position.profile for slice_ in slices)
                raise TooManyDevices(
                    f"device {device}: the pod was promised {held} slices of {position.profile} and all are in "
                    "use by its other containers"
                )
            bound[device] = match
            free.remove(match)
    return bound


def preferred_devices(request: PreferredRequest, promised: Iterable[SlicePosition]) -> list[str]:
    """The devices that kubelet should pick for one container.

    The devices that kubelet must include come first, then promised positions, oldest promise first, then any others.

    Args:
        request: kubelet's question.
        promised: positions that no container has claimed yet, oldest promise first.
    """
    chosen = dict.fromkeys(request.must_include)
    available = dict.fromkeys(request.available)
    for device in [position.device_id for position in promised] + list(request.available):
        if len(chosen) >= request.size:
            break
        if device in available:
            chosen[device] = None
    return list(chosen)[: request.size]
