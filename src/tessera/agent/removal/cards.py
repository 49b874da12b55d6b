"""Selects the GPU instances of a node that are destroyed when Tessera leaves it.

Tessera destroys what it made and nobody uses: a slice whose pod has ended, an instance of a layout without a pod. It
never destroys an instance of a running pod, one with processes, or one that somebody else made. MIG mode stays as it
is: nobody recorded what it was before.
"""

from collections.abc import Collection, Mapping

import msgspec

from tessera.api.names import PodUid
from tessera.nvml.interface import GpuInstance


class InstanceUse(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides about one instance.

    Attributes:
        instance: the instance.
        made: true if Tessera made it, on demand or for a layout.
        pods: ``namespace/name`` of the pods that have it.
        processes: PIDs on it.
    """

    instance: GpuInstance
    made: bool
    pods: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()


class CardPlan(msgspec.Struct, frozen=True):
    """The instances of one card to destroy, and notes about those of ours that stay."""

    destroy: tuple[GpuInstance, ...]
    notes: tuple[str, ...]


def plan_card(gpu: str, index: int, uses: Collection[InstanceUse], *, keep: bool) -> CardPlan:
    """Decides about one card.

    Args:
        gpu: the card's UUID.
        index: its number, for messages.
        uses: its instances.
        keep: true if unused instances stay too.
    """
    destroy: list[GpuInstance] = []
    notes: list[str] = []
    for each in uses:
        if not each.made:
            continue
        users = (*(f"pod {pod}" for pod in each.pods), *(f"process {pid}" for pid in each.processes))
        if not users and not keep:
            destroy.append(each.instance)
            continue
        reason = f"used by {', '.join(users[:_SHOWN])}" if users else "kept as requested"
        notes.append(
            f"{each.instance.profile} at start {each.instance.start} of GPU {index} ({gpu}) stays, {reason};"
            f" {'once it is unused' if users else 'to remove it'}: {destroy_command(index, each.instance.gi_id)}"
        )
    return CardPlan(tuple(destroy), tuple(notes))


#: Users that a note names.
_SHOWN = 4


def destroy_command(index: int, gi_id: int) -> str:
    """The command that removes an instance by hand."""
    return f"nvidia-smi mig -i {index} -gi {gi_id} -dci && nvidia-smi mig -i {index} -gi {gi_id} -dgi"


def pods_of_instance(
    gpu: str,
    instance: GpuInstance,
    *,
    owners: Mapping[tuple[str, int], PodUid],
    users: Mapping[str, Collection[str]],
    names: Mapping[PodUid, str],
) -> tuple[str, ...]:
    """The running pods that have an instance.

    Args:
        gpu: UUID of its card.
        instance: the instance.
        owners: by card and start, the pod for which a slice was made.
        users: by MIG device, the pods that hold it.
        names: ``namespace/name`` of the pods that run on the node.
    """
    owner = owners.get((gpu, instance.start))
    found = {names[owner]} if owner is not None and owner in names else set()
    for compute in instance.compute_instances:
        found |= set(users.get(compute.mig_uuid, ()))
    return tuple(sorted(found))
