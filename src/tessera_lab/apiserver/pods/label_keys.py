"""``matchLabelKeys`` and ``mismatchLabelKeys``: written into the label selector when a pod is made. Pure, in place.

Source: ``applyMatchLabelKeysAndMismatchLabelKeys`` of ``k8s.io/kubernetes/pkg/registry/core/pod/strategy.go``. The
scheduler reads the selector alone.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tessera_lab.apiserver.interfaces import Obj

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def merge_label_keys(pod: Obj) -> None:
    """Adds one test per key that the pod has as a label, to every selector that is set."""
    labels = pod["metadata"].get("labels") or {}
    for rule in _rules(pod["spec"]):
        selector = rule.get("labelSelector")
        if selector is None:
            continue
        added = [
            {"key": key, "operator": operator, "values": [labels[key]]}
            for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
            for key in rule.get(field) or ()
            if key in labels
        ]
        if added:
            selector["matchExpressions"] = [*(selector.get("matchExpressions") or ()), *added]


def _rules(spec: Mapping[str, Any]) -> Iterator[Obj]:
    """Pod affinity terms of all kinds, and spread constraints."""
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        yield from terms.get(_REQUIRED) or ()
        yield from (each["podAffinityTerm"] for each in terms.get(_PREFERRED) or () if each.get("podAffinityTerm"))
    yield from spec.get("topologySpreadConstraints") or ()
