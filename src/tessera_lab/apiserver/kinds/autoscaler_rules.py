"""HorizontalPodAutoscalers: defaults, rules, and the form of ``autoscaling/v1``. Pure; ``pkg/apis/autoscaling``.

Stored is ``autoscaling/v2``. ``v1`` shows the target for CPU; its other metrics are not shown there. The gate
HPAScaleToZero is off, so ``minReplicas`` is at least 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.field_errors import invalid_cause, required_cause, unsupported_cause
from tessera_lab.apiserver.interfaces import Obj, StatusCause

Read = Mapping[str, Any]

_CPU_PERCENT = 80
_UP: Sequence[Read] = (
    {"type": "Pods", "value": 4, "periodSeconds": 15},
    {"type": "Percent", "value": 100, "periodSeconds": 15},
)
_DOWN: Sequence[Read] = ({"type": "Percent", "value": 100, "periodSeconds": 15},)
_SOURCES = ("ContainerResource", "External", "Object", "Pods", "Resource")
_POLICIES = ("Percent", "Pods")
_SELECT = ("Disabled", "Max", "Min")
#: Seconds (``MaxPeriodSeconds``, ``MaxStabilizationWindowSeconds``).
_LONGEST_PERIOD, _LONGEST_WINDOW = 1800, 3600
_POSITIVE = "must be greater than zero"


def default_autoscaler(scaler: Obj) -> None:
    """Sets the defaults (``SetDefaults_HorizontalPodAutoscaler``)."""
    spec = scaler.setdefault("spec", {})
    spec.setdefault("minReplicas", 1)
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": _CPU_PERCENT}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    behavior = spec.get("behavior")
    if behavior is None:
        return
    for way, policies in (("scaleUp", _UP), ("scaleDown", _DOWN)):
        rules = behavior.get(way) or {}
        behavior[way] = {"selectPolicy": "Max", "policies": [dict(each) for each in policies], **rules}
    behavior["scaleUp"].setdefault("stabilizationWindowSeconds", 0)


def validate_autoscaler(scaler: Read) -> Sequence[StatusCause]:
    """Returns the errors of a HorizontalPodAutoscaler."""
    return list(_spec(scaler.get("spec") or {}))


def _spec(spec: Read) -> Iterator[StatusCause]:
    least, most = spec.get("minReplicas", 1), spec.get("maxReplicas", 0)
    if least < 1:
        yield invalid_cause("spec.minReplicas", least, "must be greater than or equal to 1")
    if most < 1:
        yield invalid_cause("spec.maxReplicas", most, "must be greater than 0")
    if most < least:
        yield invalid_cause("spec.maxReplicas", most, "must be greater than or equal to `minReplicas`")
    for name in ("kind", "name"):
        if not (spec.get("scaleTargetRef") or {}).get(name):
            yield required_cause(f"spec.scaleTargetRef.{name}")
    for index, metric in enumerate(spec.get("metrics") or ()):
        yield from _metric(metric, f"spec.metrics[{index}]")
    for way in ("scaleUp", "scaleDown"):
        yield from _rules((spec.get("behavior") or {}).get(way) or {}, f"spec.behavior.{way}")


def _metric(metric: Read, path: str) -> Iterator[StatusCause]:
    kind = metric.get("type", "")
    if kind not in _SOURCES:
        yield unsupported_cause(f"{path}.type", kind, _SOURCES)
        return
    field = kind[0].lower() + kind[1:]
    source = metric.get(field)
    if source is None:
        yield required_cause(f"{path}.{field}", "must populate information for the given metric source")
        return
    target = source.get("target") or {}
    if kind in {"External", "Object"} and ("value" in target) == ("averageValue" in target):
        text = "must specify either a target value for metric or a per-pod target"
        yield required_cause(f"{path}.{field}.target", text)
    if kind == "Pods" and "averageValue" not in target:
        yield required_cause(f"{path}.{field}.target.averageValue", "must specify a positive target averageValue")


def _rules(rules: Read, path: str) -> Iterator[StatusCause]:
    window, select = rules.get("stabilizationWindowSeconds"), rules.get("selectPolicy", "Max")
    if window is not None and not 0 <= window <= _LONGEST_WINDOW:
        bound = f"less than or equal to {_LONGEST_WINDOW}" if window > 0 else "greater than or equal to zero"
        text = f"must be {bound}"
        yield invalid_cause(f"{path}.stabilizationWindowSeconds", window, text)
    if select not in _SELECT:
        yield unsupported_cause(f"{path}.selectPolicy", select, _SELECT)
    for index, policy in enumerate(rules.get("policies") or ()):
        yield from _policy(policy, f"{path}.policies[{index}]")


def _policy(policy: Read, path: str) -> Iterator[StatusCause]:
    if policy.get("type") not in _POLICIES:
        yield unsupported_cause(f"{path}.type", policy.get("type", ""), _POLICIES)
    for name in ("value", "periodSeconds"):
        if policy.get(name, 0) <= 0:
            yield invalid_cause(f"{path}.{name}", policy.get(name, 0), _POSITIVE)
    if policy.get("periodSeconds", 0) > _LONGEST_PERIOD:
        text = f"must be less than or equal to {_LONGEST_PERIOD}"
        yield invalid_cause(f"{path}.periodSeconds", policy["periodSeconds"], text)


def to_stored_autoscaler(obj: Obj) -> Obj:
    """Converts ``autoscaling/v1`` to ``v2``, the stored form."""
    spec = dict(obj.get("spec") or {})
    percent = spec.pop("targetCPUUtilizationPercentage", None)
    if percent is not None:
        target = {"type": "Utilization", "averageUtilization": percent}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    return {**obj, "spec": spec}


def to_first_autoscaler(obj: Obj) -> Obj:
    """Converts ``autoscaling/v2`` to ``v1``."""
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    for metric in spec.pop("metrics", ()):
        resource = metric.get("resource") or {}
        percent = (resource.get("target") or {}).get("averageUtilization")
        if resource.get("name") == "cpu" and percent is not None:
            spec["targetCPUUtilizationPercentage"] = percent
    spec.pop("behavior", None)
    for name in ("currentMetrics", "conditions"):
        status.pop(name, None)
    return {**obj, "spec": spec, **({"status": status} if "status" in obj else {})}
