"""Whole cards and shares of cards as cards of the fleet that have one profile.

Such a *device* of a node is a card with one legal start. So slices and devices have one planner and one order, and the
same reservations and gangs. The profile of a device is named by its resource, ``nvidia.com/gpu``, as no slice is.
The devices of a node are alike: kubelet chooses which of them a pod gets.
"""

from tessera.mig.geometry import Geometry, Profile

#: Memory slots that one share counts as, whatever part of the card it is.
SHARE_SLOTS = 1


def shared_geometry(model: str, resource: str, count: int, memory_gb: int) -> Geometry:
    """Returns the geometry of a card with several devices on it: each is a place of its own.

    Args:
        model: the model of the card.
        resource: the resource that each device is an amount of.
        count: devices.
        memory_gb: memory of each in GiB; 0 if unknown.
    """
    row = Profile(
        name=resource,
        compute_slices=SHARE_SLOTS,
        size=SHARE_SLOTS,
        starts=tuple(range(count)),
        max_count=count,
        memory_gb=memory_gb,
        gi_profile_index=-1,
    )
    return Geometry(f"{model} ({resource})", count, (row,))


def device_geometry(model: str, resource: str, slots: int, memory_gb: int) -> Geometry:
    """Returns the geometry of one device.

    Args:
        model: the model of its card.
        resource: the resource that it is an amount of.
        slots: the memory slots that it counts as.
        memory_gb: its memory in GiB; 0 if unknown.
    """
    row = Profile(
        name=resource,
        compute_slices=slots,
        size=slots,
        starts=(0,),
        max_count=1,
        memory_gb=memory_gb,
        gi_profile_index=-1,
    )
    return Geometry(f"{model} ({resource})", slots, (row,))
