"""How many more pods the ResourceQuotas of a namespace admit. Pure.

A pod beyond a quota is refused when it is created, so a scaler would get nothing for it. Requests, limits and the
number of pods count. Quotas of a scope count if the pods of services are in it: they have no deadline
(``NotTerminating``), and are ``BestEffort`` without CPU and memory. Of another scope, such as a priority class, it is
not known here, so such a quota bounds nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tessera.controller.objects.resource_amounts import Amounts, parse_amounts

#: Names of a quota for the number of pods, and for resources that it may name without ``requests.``.
_PODS = frozenset({"pods", "count/pods"})
_PLAIN = frozenset({"cpu", "memory", "ephemeral-storage"})
_REQUESTS, _LIMITS = "requests.", "limits."


def quota_room(quotas: Iterable[Mapping[str, Any]], amounts: Amounts, limits: Amounts | None = None) -> int | None:
    """Returns how many more pods of these amounts the quotas of a namespace admit; None if they bound none.

    Args:
        quotas: the ResourceQuotas, as the server sends them.
        amounts: what one pod requests.
        limits: the limits of one pod.
    """
    asked = {_REQUESTS + name: value for name, value in amounts.items()}
    asked |= {name: value for name, value in amounts.items() if name in _PLAIN or name.startswith("hugepages-")}
    asked |= {_LIMITS + name: value for name, value in (limits or {}).items()}
    asked |= dict.fromkeys(_PODS, 1)
    is_best_effort = not {"cpu", "memory"} & (amounts.keys() | (limits or {}).keys())
    scopes = {"NotTerminating", "BestEffort" if is_best_effort else "NotBestEffort"}
    return min((room for quota in quotas if _is_for(quota, scopes) for room in _rooms(quota, asked)), default=None)


def _is_for(quota: Mapping[str, Any], scopes: set[str]) -> bool:
    spec = quota.get("spec") or {}
    return not spec.get("scopeSelector") and set(spec.get("scopes") or ()) <= scopes


def _rooms(quota: Mapping[str, Any], asked: Amounts) -> Iterator[int]:
    status = quota.get("status") or {}
    used = status.get("used") or {}
    for name, most in (status.get("hard") or {}).items():
        wanted, resource = asked.get(name, 0), name.removeprefix(_REQUESTS).removeprefix(_LIMITS)
        try:
            left = parse_amounts({resource: most})[resource] - parse_amounts({resource: used.get(name, "0")})[resource]
        except ValueError:
            continue
        if wanted > 0:
            yield max(0, left // wanted)
