"""What a cluster's Kueue charges for one slice, by its Configuration and its ClusterQueues: right, nothing, or double.

A pod with a slice asks for two resources: the slice, and the memory quota that admission adds. Kueue drops those with
an excluded prefix, transforms the rest, and charges what the ClusterQueue covers; what it does not cover makes the pod
inadmissible, or is ignored (``quotaCheckStrategy: IgnoreUndeclared``). All amounts here are of one slice.
"""

from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec

from tessera.api.names import QUOTA_RESOURCE, resource_of
from tessera.kube.quantity import parse_quantity
from tessera.kueue.configuration import charged_gigabytes
from tessera.kueue.objects import CHARGED_RESOURCE, Release

_GIB = 2**30
#: Kueue's default ``integrations.frameworks``.
_DEFAULT_FRAMEWORKS = ("batch/job",)
#: The first release with ``waitForPodsReady`` on where a Configuration of v1beta2 does not have it.
WAITS_BY_DEFAULT: Release = (0, 19)


class ChargeFault(Enum):
    """What is wrong with the charge of a slice."""

    NOTHING = "nothing"
    DOUBLE = "double"
    OTHER = "other"
    INADMISSIBLE = "inadmissible"


class SliceCharge(msgspec.Struct, frozen=True, kw_only=True):
    """The charge of a slice in one ClusterQueue.

    Attributes:
        profile: of the slice.
        fault: what is wrong; None if the slice is charged its memory, or counted by its own resource.
        detail: the resource and the amount that it is about.
    """

    profile: str
    fault: ChargeFault | None = None
    detail: str = ""


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a Configuration that matter here, read without trust in their form.

    Attributes:
        excluded: ``resources.excludeResourcePrefixes``.
        outputs: for each transformed resource, what it becomes.
        retained: transformed resources that are charged as well.
        ignores_undeclared: True with ``quotaCheckStrategy: IgnoreUndeclared``.
        frameworks: ``integrations.frameworks``, or Kueue's default.
        waits_for_pods: True if ``waitForPodsReady`` is on; None if that depends on the release, since it is not set:
            it is on by default from :data:`WAITS_BY_DEFAULT` on.
    """

    excluded: tuple[str, ...] = ()
    outputs: Mapping[str, Mapping[str, Decimal]] = {}
    retained: frozenset[str] = frozenset()
    ignores_undeclared: bool = False
    frameworks: tuple[str, ...] = _DEFAULT_FRAMEWORKS
    waits_for_pods: bool | None = False


def read_settings(document: Any) -> QueueSettings:
    """Reads a decoded Configuration; parts of another form count as missing, since Kueue itself refuses them."""
    top = document if isinstance(document, dict) else {}
    resources = _mapping(top, "resources")
    outputs: dict[str, dict[str, Decimal]] = {}
    retained = set()
    for rule in _texts_or_rules(resources.get("transformations")):
        if isinstance(rule, dict) and isinstance(rule.get("input"), str):
            outputs[rule["input"]] = _amounts(_mapping(rule, "outputs"))
            if rule.get("strategy", "Retain") == "Retain":
                retained.add(rule["input"])
    frameworks = tuple(each for each in _texts_or_rules(_mapping(top, "integrations").get("frameworks")))
    return QueueSettings(
        excluded=tuple(
            each for each in _texts_or_rules(resources.get("excludeResourcePrefixes")) if isinstance(each, str)
        ),
        outputs=outputs,
        retained=frozenset(retained),
        ignores_undeclared=resources.get("quotaCheckStrategy") == "IgnoreUndeclared",
        frameworks=tuple(each for each in frameworks if isinstance(each, str)) or _DEFAULT_FRAMEWORKS,
        waits_for_pods=_waits(top),
    )


def _waits(top: Mapping[str, Any]) -> bool | None:
    """In v1beta1 it is off without ``enable``; in v1beta2 the section alone turns it on."""
    if _mapping(top, "featureGates").get("DisableWaitForPodsReady") is True:
        return False
    newer = str(top.get("apiVersion", "")).endswith("/v1beta2")
    value = top.get("waitForPodsReady")
    if value is None:
        return None if newer else False
    return isinstance(value, dict) and value.get("enable", newer) is not False


def _mapping(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = item.get(key)
    return value if isinstance(value, dict) else {}


def _texts_or_rules(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _amounts(found: Mapping[str, Any]) -> dict[str, Decimal]:
    amounts = {}
    for name, text in found.items():
        try:
            amounts[str(name)] = parse_quantity(str(text))
        except ValueError:
            continue
    return amounts


def charge_of(profile: str, settings: QueueSettings, covered: Collection[str]) -> SliceCharge:
    """Returns how a ClusterQueue charges a pod with one slice.

    Args:
        profile: in the resource's spelling.
        settings: of Kueue.
        covered: the resources that the ClusterQueue covers.
    """
    resource, gigabytes = resource_of(profile), charged_gigabytes(profile)
    left = _effective({resource: Decimal(1), QUOTA_RESOURCE: Decimal(gigabytes * _GIB)}, settings)
    uncovered = sorted(name for name in left if name not in covered)
    if uncovered and not settings.ignores_undeclared:
        return SliceCharge(profile=profile, fault=ChargeFault.INADMISSIBLE, detail=uncovered[0])
    charged = {name: amount for name, amount in left.items() if name in covered}
    if not charged:
        return SliceCharge(profile=profile, fault=ChargeFault.NOTHING)
    for name in (QUOTA_RESOURCE, CHARGED_RESOURCE):
        amount = charged.get(name)
        if amount is None or amount == gigabytes * _GIB:
            continue
        fault = ChargeFault.DOUBLE if amount == 2 * gigabytes * _GIB else ChargeFault.OTHER
        return SliceCharge(profile=profile, fault=fault, detail=f"{(amount / _GIB).normalize():f}Gi of {name}")
    return SliceCharge(profile=profile)


def _effective(requests: Mapping[str, Decimal], settings: QueueSettings) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for name, amount in requests.items():
        if settings.excluded and name.startswith(settings.excluded):
            continue
        outputs = settings.outputs.get(name)
        if outputs is None or name in settings.retained:
            found[name] = found.get(name, Decimal(0)) + amount
        for output, each in (outputs or {}).items():
            found[output] = found.get(output, Decimal(0)) + each * amount
    return found


def covers_slices(covered: Iterable[str]) -> bool:
    """True if a ClusterQueue has a quota on slices or on their memory."""
    return any(name in {QUOTA_RESOURCE, CHARGED_RESOURCE} or name.startswith("nvidia.com/mig-") for name in covered)
