"""Which nodes a pod's author leaves: ``spec.nodeSelector`` and required node affinity, as the scheduler reads them.

The rules are those of ``k8s.io/component-helpers/scheduling/corev1/nodeaffinity``: terms are alternatives, all tests of
a term must hold, a term without tests admits no node. Taints, room and the state of a node are not looked at: a pod may
wait for them.

A pod's JSON is read as the API server hands it over, its types already checked there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.api.names import MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL, is_on_demand
from tessera.kube.selectors import Requirement, operator

Json = Mapping[str, Any]


def required_terms(spec: Json) -> Sequence[Json] | None:
    """The alternatives of required node affinity, ``None`` without any; of an empty list none can hold."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else required.get("nodeSelectorTerms") or ()


def restricted(spec: Json) -> bool:
    """Whether the pod says anything about its nodes."""
    return bool(spec.get("nodeSelector")) or required_terms(spec) is not None


def admits(spec: Json, name: str, labels: Mapping[str, str]) -> bool:
    """Whether a node of this name and with these labels is left."""
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    terms = required_terms(spec)
    return terms is None or any(_holds(term, name, labels) for term in terms)


def _holds(term: Json, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_test(each, labels) for each in expressions) and all(
        _test(each, {"metadata.name": name}) for each in fields
    )


def _test(expression: Json, labels: Mapping[str, str]) -> bool:
    try:
        sign = operator(expression.get("operator", ""))
    except ValueError:
        return False  # the API server refuses the pod for it
    return Requirement(expression.get("key", ""), sign, tuple(expression.get("values") or ())).matches(labels)


def may_be_on_demand(spec: Json) -> bool:
    """Whether what the pod says of ``nvidia.com/mig.config`` alone leaves nodes with cards for on-demand slicing.

    For a pod that no node of today fits: the author has a kind of node in mind that may still come.
    """
    return any(_config_admitted(spec, config) for config in {MIG_CONFIG_DYNAMIC, *filter(is_on_demand, _named(spec))})


def _config_tests(spec: Json) -> Sequence[Sequence[Json]]:
    """By alternative, the tests of affinity on the label."""
    return [
        [each for each in term.get("matchExpressions") or () if each.get("key") == MIG_CONFIG_LABEL]
        for term in required_terms(spec) or ()
    ]


def _named(spec: Json) -> Sequence[str]:
    named = [value for tests in _config_tests(spec) for each in tests for value in each.get("values") or ()]
    return [*named, (spec.get("nodeSelector") or {}).get(MIG_CONFIG_LABEL, "")]


def _config_admitted(spec: Json, config: str) -> bool:
    if (spec.get("nodeSelector") or {}).get(MIG_CONFIG_LABEL, config) != config:
        return False
    alternatives = _config_tests(spec)
    return not alternatives or any(
        all(_test(each, {MIG_CONFIG_LABEL: config}) for each in tests) for tests in alternatives
    )
