"""ResourceClaims of a pod: their names, whom they are reserved for, and the devices that they hold.

Works on decoded JSON. The claim controller and the simulated kubelet use these functions too, as in Kubernetes
(``k8s.io/dynamic-resource-allocation/resourceclaim``).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]

#: Keeps an allocated claim until nobody uses it; without it the claim controller clears no allocation.
FINALIZER = "resource.kubernetes.io/delete-protection"


def claim_names(pod: Json) -> Mapping[str, str]:
    """Names of the pod's claims by their entry in its spec; empty for a claim that its controller has still to make.

    An entry for which no claim is needed is left out.
    """
    made = {each["name"]: each.get("resourceClaimName") for each in _statuses(pod)}
    found: dict[str, str] = {}
    for each in pod["spec"].get("resourceClaims") or ():
        name = each.get("resourceClaimName") or made.get(each["name"], "")
        if name is not None:
            found[each["name"]] = name
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus")
    if extended:
        found[""] = extended["resourceClaimName"]
    return found


def _statuses(pod: Json) -> Sequence[Json]:
    return (pod.get("status") or {}).get("resourceClaimStatuses") or ()


def is_of_template(pod: Json, entry: str) -> bool:
    """True if the pod's claim of this entry is made for this pod alone."""
    listed = {each["name"]: each for each in pod["spec"].get("resourceClaims") or ()}
    return entry not in listed or not listed[entry].get("resourceClaimName")


def owner_uid(claim: Json) -> str:
    """UID of the pod for which a claim was made; empty if it was not made for one."""
    owners = claim["metadata"].get("ownerReferences") or ()
    return next((each["uid"] for each in owners if each.get("controller") and each.get("kind") == "Pod"), "")


def allocation_of(claim: Json) -> Json | None:
    """The claim's allocation."""
    found: Json | None = (claim.get("status") or {}).get("allocation")
    return found


def results_of(allocation: Json | None) -> Sequence[Json]:
    """The devices of an allocation."""
    found: Sequence[Json] = ((allocation or {}).get("devices") or {}).get("results") or ()
    return found


def reservations(claim: Json) -> Sequence[Json]:
    """The consumers that may use the claim."""
    found: Sequence[Json] = (claim.get("status") or {}).get("reservedFor") or ()
    return found


def is_reserved_for(claim: Json, uid: str) -> bool:
    """True if the pod of that UID may use the claim."""
    return any(each.get("uid") == uid for each in reservations(claim))


def consumer(name: str, uid: str) -> dict[str, str]:
    """The entry of ``status.reservedFor`` for a pod."""
    return {"resource": "pods", "name": name, "uid": uid}


def container_requests(container: Json) -> Iterable[tuple[str, str]]:
    """Entries of the pod's claims that a container uses, each with the one request that it uses; empty for all."""
    for each in (container.get("resources") or {}).get("claims") or ():
        yield each["name"], each.get("request") or ""


def base_request(name: str) -> str:
    """The request of a result, without the alternative that was chosen."""
    return name.partition("/")[0]
