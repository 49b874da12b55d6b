"""Charges a pod with slices to the quota resource: GB of its profiles, counted as Gi.

- A pod is charged for all slices that it holds until it ends. Kubernetes counts the largest init container beside the
  sum of the app containers, but kubelet keeps the slices of every init container; the uncounted rest is charged to an
  app container.
- The amounts follow from the slices. An author may leave them out or write the same amounts, as in a copy of a running
  pod; other amounts are refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import MIG_RESOURCE_PREFIX, QUOTA_RESOURCE
from tessera.api.pods.slice_requests import ContainerSlices
from tessera.kube.quantity import parse_quantity
from tessera.mig.names import parse_profile_name
from tessera.text import one_line
from tessera.webhook.admission.pod_json import Operation, add_operation
from tessera.webhook.base import PodRefused, Rule

Json = Mapping[str, Any]

_GI = 2**30


class ContainerWithSlices(msgspec.Struct, frozen=True, kw_only=True):
    """A container that asks for slices, and its path in the pod."""

    path: str
    container: Json
    slices: ContainerSlices


class QuotaCharge(msgspec.Struct, frozen=True):
    """The amount that one container is charged.

    Attributes:
        path: the container's path in the pod.
        container: as its author wrote it.
        gigabytes: GB of its slices, and of slices that Kubernetes would not count.
    """

    path: str
    container: Json
    gigabytes: int

    def operations(self) -> Sequence[Operation]:
        """Returns the operations that set limits and requests; none if both have the amount already."""
        amount = f"{self.gigabytes}Gi"
        at = (*self.path.split("/")[1:], "resources")
        resources = self.container.get("resources")
        if resources is None:
            both = {"limits": {QUOTA_RESOURCE: amount}, "requests": {QUOTA_RESOURCE: amount}}
            return [add_operation(at, both)]
        operations: list[Operation] = []
        for field in ("limits", "requests"):
            present = resources.get(field)
            if present is None:
                operations.append(add_operation((*at, field), {QUOTA_RESOURCE: amount}))
            elif not _is_amount(present.get(QUOTA_RESOURCE), self.gigabytes):
                operations.append(add_operation((*at, field, QUOTA_RESOURCE), amount))
        return operations


def compute_charges(asking: Sequence[ContainerWithSlices], held: Sequence[str], spec: Json) -> Sequence[QuotaCharge]:
    """Returns the charges; Kubernetes counts their sum as the amount that the pod holds.

    Args:
        asking: the containers that ask for slices.
        held: the profiles of all slices that the pod keeps.
        spec: the pod's ``spec``.
    """
    charges = [QuotaCharge(one.path, one.container, _gigabytes(one.slices)) for one in asking]
    beside = peak = 0
    for one, charge in zip(asking, charges, strict=True):
        if one.slices.init and not one.slices.sidecar:
            peak = max(peak, beside + charge.gigabytes)
        else:
            beside += charge.gigabytes
    whole = sum(map(_memory, held))
    if max(beside, peak) >= whole or not spec.get("containers"):
        return charges
    path = next((one.path for one in asking if not one.slices.init), "/spec/containers/0")
    before = sum(charge.gigabytes for charge in charges if charge.path == path)
    container = spec["containers"][int(path.rpartition("/")[2])]
    others = [charge for charge in charges if charge.path != path]
    return [*others, QuotaCharge(path, container, before + whole - beside)]


def refuse_other_charges(spec: Json, charges: Sequence[QuotaCharge]) -> None:
    """Refuses amounts of the quota resource that do not match the slices.

    Raises:
        PodRefused: the text names the container, its amount and the right amount.
    """
    right = {charge.path: charge.gigabytes for charge in charges}
    for path, name, amount in _written_amounts(spec):
        gigabytes = right.get(path, 0)
        if not _is_amount(amount, gigabytes):
            because = f"its slices are charged {gigabytes}Gi" if gigabytes else "it is charged for no slices"
            raise PodRefused(
                Rule.QUOTA,
                f'container "{one_line(name)}": asks for {one_line(amount)} of {QUOTA_RESOURCE}, but {because}; ask '
                f"for slices ({MIG_RESOURCE_PREFIX}3g.20gb) and leave this resource out: admission writes the amount",
            )


def _written_amounts(spec: Json) -> Iterator[tuple[str, str, Any]]:
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            resources = container.get("resources") or {}
            for amounts in (resources.get("limits"), resources.get("requests")):
                if amounts and QUOTA_RESOURCE in amounts:
                    yield f"/spec/{field}/{index}", container.get("name") or "", amounts[QUOTA_RESOURCE]


def _is_amount(amount: Any, gigabytes: int) -> bool:
    try:
        return parse_quantity(str(amount)) == gigabytes * _GI
    except ValueError:
        return False


def _gigabytes(slices: ContainerSlices) -> int:
    return sum(_memory(profile) * count for profile, count in slices.counts.items())


def _memory(profile: str) -> int:
    """Returns the GB of a profile; 0 for a node's profile name that is not a MIG profile."""
    try:
        return parse_profile_name(profile).memory_gb
    except ValueError:
        return 0
