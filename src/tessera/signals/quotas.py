"""How many more pods the ResourceQuotas of a namespace admit. Pure.

A pod beyond a quota is refused when it is created, so a scaler would get nothing for it. Requests and the number of
pods count, and quotas for all pods or for those without a deadline (scope ``NotTerminating``), which services make; of
another scope it is not known here whether the pod is in it, so such a quota bounds nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tessera.controller.objects.resource_amounts import Amounts, parse_amounts

#: Names of a quota for the number of pods, and for resources that it may name without ``requests.``.
_PODS = frozenset({"pods", "count/pods"})
_PLAIN = frozenset({"cpu", "memory", "ephemeral-storage"})
_REQUESTS = "requests."


def quota_room(quotas: Iterable[Mapping[str, Any]], amounts: Amounts) -> int | None:
    """Returns how many more pods of these amounts the quotas of a namespace admit; None if they bound none.

    Args:
        quotas: the ResourceQuotas, as the server sends them.
        amounts: what one pod requests.
    """
    return min((room for quota in quotas for room in _rooms(quota, amounts)), default=None)


def _rooms(quota: Mapping[str, Any], amounts: Amounts) -> Iterator[int]:
    spec, status = quota.get("spec") or {}, quota.get("status") or {}
    if spec.get("scopeSelector") or set(spec.get("scopes") or ()) - {"NotTerminating"}:
        return
    used = status.get("used") or {}
    for name, most in (status.get("hard") or {}).items():
        resource = "pods" if name in _PODS else name.removeprefix(_REQUESTS)
        if name not in _PODS | _PLAIN and not name.startswith(_REQUESTS):
            continue
        wanted = 1 if resource == "pods" else amounts.get(resource, 0)
        try:
            left = parse_amounts({resource: most})[resource] - parse_amounts({resource: used.get(name, "0")})[resource]
        except ValueError:
            continue
        if wanted > 0:
            yield max(0, left // wanted)
