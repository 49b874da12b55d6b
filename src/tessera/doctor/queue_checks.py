"""Checks of Kueue's configuration: slices are charged once, pods are queued, nothing is evicted at Tessera's gate.

In a cluster without Kueue, and in one whose queues have no quota on slices, there is no finding.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import MIG_RESOURCE_PREFIX, QUOTA_RESOURCE, profile_of
from tessera.doctor.facts import (
    ClusterFacts,
    Finding,
    KueueFacts,
    Object,
    Refusal,
    error,
    not_examined,
    ok,
    unknown,
    warning,
)
from tessera.kueue.charges import (
    WAITS_BY_DEFAULT,
    ChargeFault,
    QueueSettings,
    SliceCharge,
    charge_of,
    covers_slices,
    read_settings,
)
from tessera.kueue.configuration import charged_gigabytes
from tessera.kueue.objects import CHECK_CONTROLLER, CONFIG_MAP, CONFIG_NAMESPACE, Release
from tessera.text import count_noun, list_names, one_line

_PAGE = "docs/kueue.md"
_CONFIG = f"ConfigMap {CONFIG_NAMESPACE}/{CONFIG_MAP}"
_EXTEND = "write it anew with tessera kueue config --extend FILE, and restart Kueue"

#: The worst first.
_FAULTS = (ChargeFault.NOTHING, ChargeFault.DOUBLE, ChargeFault.OTHER, ChargeFault.INADMISSIBLE)


class _Queue(msgspec.Struct, frozen=True):
    name: str
    covered: frozenset[str]
    checks: frozenset[str]


def check_queues(facts: ClusterFacts) -> Iterator[Finding]:
    """Yields the findings of all checks of this module."""
    if isinstance(facts.kueue, Refusal):
        if not facts.kueue.missing:
            yield not_examined("kueue", facts.kueue, needs="read Kueue's objects")
        return
    queues = [queue for queue in map(_read_queue, facts.kueue.cluster_queues) if covers_slices(queue.covered)]
    if not queues:
        return
    yield from _checks(facts.kueue, queues)
    if isinstance(facts.kueue.configuration, Refusal):
        reason = facts.kueue.configuration.reason
        yield unknown("kueue-charges", f"{_CONFIG} cannot be read: {reason}", "ask for the right, or see " + _PAGE)
        return
    settings = read_settings(facts.kueue.configuration)
    yield _charges(facts, settings, queues)
    if "pod" not in settings.frameworks:
        text = f"{_CONFIG} does not name the integration pod: pods, Deployments and StatefulSets are not queued"
        yield warning("kueue-pods", text, "add pod to integrations.frameworks, unless only Jobs use slices")
    unchecked = [queue.name for queue in queues if not queue.checks & _ours(facts.kueue.admission_checks).keys()]
    timeout = _ready_timeout(settings, facts.kueue.release)
    if timeout and unchecked:
        text = f"{timeout} evicts admitted pods that wait for room on the cards, a single pod for good"
        advice = f"add the admission check packable to these queues (tessera kueue queues, {_PAGE})"
        yield warning("kueue-ready-timeout", text, advice, [f"clusterqueue/{name}" for name in unchecked])


def _ready_timeout(settings: QueueSettings, release: Release | None) -> str:
    """The subject of a sentence about what ``waitForPodsReady`` does; empty where it is off."""
    first = ".".join(map(str, WAITS_BY_DEFAULT))
    if settings.waits_for_pods is not None:
        return "waitForPodsReady" if settings.waits_for_pods else ""
    if release is None:
        return f"if this Kueue is {first} or newer, waitForPodsReady is on by default and"
    return f"waitForPodsReady, on by default since Kueue {first}," if release >= WAITS_BY_DEFAULT else ""


def _charges(facts: ClusterFacts, settings: QueueSettings, queues: Sequence[_Queue]) -> Finding:
    profiles = _profiles(facts)
    found: dict[ChargeFault, list[tuple[str, SliceCharge]]] = {}
    for queue in queues:
        for profile in profiles:
            charge = charge_of(profile, settings, queue.covered)
            if charge.fault is not None and not _is_queues_choice(queue, charge):
                found.setdefault(charge.fault, []).append((queue.name, charge))
    for fault in _FAULTS:
        if fault in found:
            names = sorted({f"clusterqueue/{name}" for name, _ in found[fault]})
            text = _fault_text(fault, [charge for _, charge in found[fault]])
            advice = _ADVICE.get(fault, f"{_CONFIG}: {_EXTEND}")
            if all(charge.detail == QUOTA_RESOURCE for _, charge in found[fault]):
                advice = f"{_HIDE}; or {advice}"
            return error("kueue-charges", text, advice, names)
    if not profiles:
        return unknown("kueue-charges", "no node offers slices, so no charge can be computed")
    return ok("kueue-charges", f"{count_noun(len(queues), 'ClusterQueue')}: each slice is charged its memory once")


def _is_queues_choice(queue: _Queue, charge: SliceCharge) -> bool:
    """True if a queue counts slices by their own names, and does not name this one."""
    by_name = any(each.startswith(MIG_RESOURCE_PREFIX) for each in queue.covered)
    return by_name and charge.fault is ChargeFault.INADMISSIBLE and charge.detail.startswith(MIG_RESOURCE_PREFIX)


#: What keeps queues over ``nvidia.com/mig-*`` as they are.
_HIDE = (
    "if the queue counts nvidia.com/mig-* itself, hide Tessera's memory quota from Kueue: tessera kueue config"
    " --count-slices --extend FILE, where FILE is Kueue's Configuration, and restart Kueue (docs/kueue.md, Queues over"
    " slices)"
)
_ADVICE: Mapping[ChargeFault, str] = {
    ChargeFault.INADMISSIBLE: f"cover tessera.dev/gpu-memory in the queue, and in {_CONFIG}: {_EXTEND}"
}


def _fault_text(fault: ChargeFault, charges: Sequence[SliceCharge]) -> str:
    names = list_names(sorted({each.profile for each in charges}))
    detail = one_line(charges[0].detail)
    match fault:
        case ChargeFault.NOTHING:
            return f"Kueue charges nothing for slices, so its quota does not hold: {names}"
        case ChargeFault.DOUBLE:
            return f"Kueue charges slices double, {charges[0].profile} for example {detail}: {names}"
        case ChargeFault.OTHER:
            return f"Kueue charges slices another amount than their memory, {charges[0].profile} {detail}: {names}"
        case ChargeFault.INADMISSIBLE:
            return f"Kueue admits no pod with these slices, since the queue does not cover {detail}: {names}"


def _checks(kueue: KueueFacts, queues: Sequence[_Queue]) -> Iterator[Finding]:
    """Tessera's admission checks that queues name and that are not answered."""
    silent = [name for name, active in _ours(kueue.admission_checks).items() if not active]
    named = sorted(queue.name for queue in queues if queue.checks & set(silent))
    if named:
        text = f"the admission check {list_names(silent)} is not answered, so these queues admit nothing"
        advice = "Tessera's controller looks for it once a minute; see that it runs, and has its rights"
        yield error("kueue-check", text, advice, [f"clusterqueue/{name}" for name in named])


def _ours(checks: Sequence[Object]) -> Mapping[str, bool]:
    """Tessera's checks by name: True if the controller answers it."""
    return {
        str(each["metadata"]["name"]): _is_active(each)
        for each in checks
        if (each.get("spec") or {}).get("controllerName") == CHECK_CONTROLLER
    }


def _is_active(check: Object) -> bool:
    conditions: Sequence[Any] = (check.get("status") or {}).get("conditions") or ()
    return any((each.get("type"), each.get("status")) == ("Active", "True") for each in conditions)


def _read_queue(item: Object) -> _Queue:
    spec = item.get("spec") or {}
    rules = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    names = [*(spec.get("admissionChecks") or ()), *(each.get("name", "") for each in rules)]
    covered = [name for group in spec.get("resourceGroups") or () for name in group.get("coveredResources") or ()]
    return _Queue(str(item["metadata"]["name"]), frozenset(covered), frozenset(names))


def _profiles(facts: ClusterFacts) -> list[str]:
    """The profiles that nodes offer."""
    if isinstance(facts.nodes, Refusal):
        return []
    found = {profile_of(name) for node in facts.nodes for name in node.status.allocatable}
    return sorted(profile for profile in found if profile and charged_gigabytes(profile))
