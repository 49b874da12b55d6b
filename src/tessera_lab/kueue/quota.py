"""Whether a Workload's requests fit a ClusterQueue's quota, in the words of Kueue's messages. Cohorts are left out."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from tessera.kube.quantity import format_quantity, parse_quantity
from tessera_lab.kueue.requests import Amounts

Json = dict[str, Any]


class Usage:
    """The reservations in one ClusterQueue, by flavor and resource."""

    def __init__(self, queue: Json) -> None:
        self._groups: Sequence[Json] = queue["spec"].get("resourceGroups") or ()
        self._used: dict[tuple[str, str], Decimal] = {}

    def add(self, assignment: Mapping[str, str], amounts: Amounts, sign: int = 1) -> None:
        """Counts what a pod set has reserved."""
        for resource, flavor in assignment.items():
            at = (flavor, resource)
            self._used[at] = self._used.get(at, Decimal(0)) + sign * amounts.get(resource, Decimal(0))

    def used(self, flavor: str, resource: str) -> Decimal:
        """Returns the reserved amount of a resource in a flavor."""
        return self._used.get((flavor, resource), Decimal(0))

    def assign(self, pod_set: str, amounts: Amounts, *, old: bool) -> tuple[dict[str, str], str]:
        """Returns the flavor of each resource, or the reason that there is none; ``old`` in the words of Kueue 0.13."""
        found: dict[str, str] = {}
        for resource in sorted(name for name, amount in amounts.items() if amount):
            group = next((each for each in self._groups if resource in each["coveredResources"]), None)
            if group is None:
                text = f"resource {resource} unavailable in ClusterQueue"
                return {}, f"couldn't assign flavors to pod set {pod_set}: {text}"
            if resource in found:
                continue
            covered = {name: amount for name, amount in amounts.items() if name in group["coveredResources"]}
            reasons = []
            for flavor in group["flavors"]:
                reason = self._refusal(flavor, covered, old=old)
                if not reason:
                    found |= dict.fromkeys(covered, flavor["name"])
                    break
                reasons.append(reason)
            else:
                return {}, f"couldn't assign flavors to pod set {pod_set}: {', '.join(reasons)}"
        return found, ""

    def _refusal(self, flavor: Json, amounts: Amounts, *, old: bool) -> str:
        for quota in flavor["resources"]:
            resource, nominal = quota["name"], parse_quantity(str(quota["nominalQuota"]))
            wanted = amounts.get(resource, Decimal(0))
            if wanted > nominal:
                begin = f"insufficient quota for {resource} in flavor {flavor['name']}, "
                if old:
                    return f"{begin}request > maximum capacity ({_text(resource, wanted)} > {_text(resource, nominal)})"
                return (
                    f"{begin}previously considered podsets requests (0) + current podset request "
                    f"({_text(resource, wanted)}) > maximum capacity ({_text(resource, nominal)})"
                )
            missing = self.used(flavor["name"], resource) + wanted - nominal
            if missing > 0:
                needed = _text(resource, missing)
                return f"insufficient unused quota for {resource} in flavor {flavor['name']}, {needed} more needed"
        return ""


def _text(resource: str, amount: Decimal) -> str:
    """Kueue writes memory with a binary suffix, and resources that it does not know as plain numbers, even bytes."""
    return format_quantity(amount, binary=True) if resource == "memory" else f"{amount.normalize():f}"
