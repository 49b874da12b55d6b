"""The subresources binding and eviction of pods: their checks, and their changes of the pod. Pure.

Rules and texts: ``k8s.io/kubernetes/pkg/registry/core/pod/storage``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tessera_lab.apiserver.interfaces import Obj, StatusCause
from tessera_lab.apiserver.status import (
    StatusError,
    bad_request_error,
    conflict_error,
    invalid_error,
    too_many_requests_error,
)

Read = Mapping[str, Any]


def bind_pod(pod: Obj, binding: Read, now: str) -> Obj:
    """Returns the pod bound to the node that the binding names.

    Raises:
        StatusError: 422, the target is no node; 409, the pod cannot be bound.
    """
    name, target = pod["metadata"]["name"], binding.get("target") or {}
    node = target.get("name") or ""
    if target.get("kind") not in {None, "", "Node"}:
        text = f'Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        raise invalid_error(
            "", "Binding", name, [StatusCause(field="target.kind", reason="FieldValueNotSupported", message=text)]
        )
    if not node:
        raise invalid_error(
            "",
            "Binding",
            name,
            [StatusCause(field="target.name", reason="FieldValueRequired", message="Required value")],
        )
    _check_bindable(pod, binding, name)
    pod["spec"]["nodeName"] = node
    annotations = (binding.get("metadata") or {}).get("annotations")
    if annotations:
        pod["metadata"].setdefault("annotations", {}).update(annotations)
    condition = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    set_condition(pod, condition)
    return pod


def _check_bindable(pod: Read, binding: Read, name: str) -> None:
    uid = (binding.get("metadata") or {}).get("uid")
    reason = ""
    if uid and uid != pod["metadata"]["uid"]:
        met = f"UID in precondition: {uid}, UID in object meta: {pod['metadata']['uid']}"
        raise conflict_error("", "pods", name, f"Precondition failed: {met}")
    if pod["metadata"].get("deletionTimestamp"):
        reason = f"pod {name} is being deleted, cannot be assigned to a host"
    elif pod["spec"].get("nodeName"):
        reason = f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
    elif pod["spec"].get("schedulingGates"):
        reason = f"pod {name} has non-empty .spec.schedulingGates"
    if reason:
        raise conflict_error("", "pods/binding", name, reason)


def set_condition(pod: Obj, condition: Obj) -> None:
    """Sets a condition by its type; keeps the transition time if the status does not change."""
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    for index, each in enumerate(conditions):
        if each.get("type") == condition["type"]:
            if each.get("status") == condition["status"]:
                condition = {**condition, "lastTransitionTime": each.get("lastTransitionTime")}
            conditions[index] = condition
            return
    conditions.append(condition)


class DisruptionBudget(msgspec.Struct, frozen=True):
    """A PodDisruptionBudget that covers the pod to be evicted."""

    name: str
    processed: bool
    allowed: int
    desired: int
    current: int


def matching_budgets(pod: Read, budgets: Iterable[Read]) -> list[DisruptionBudget]:
    """The budgets whose selector matches the pod."""
    labels = pod["metadata"].get("labels") or {}
    return [
        _budget(each) for each in budgets if label_selector_matches((each.get("spec") or {}).get("selector"), labels)
    ]


def _budget(obj: Read) -> DisruptionBudget:
    status, meta = obj.get("status") or {}, obj["metadata"]
    return DisruptionBudget(
        name=meta["name"],
        processed=status.get("observedGeneration", 0) >= meta.get("generation", 0),
        allowed=status.get("disruptionsAllowed", 0),
        desired=status.get("desiredHealthy", 0),
        current=status.get("currentHealthy", 0),
    )


def check_budgets(pod: Read, budgets: list[DisruptionBudget]) -> DisruptionBudget | None:
    """Returns the budget that the eviction counts against; None if no budget covers the pod.

    Raises:
        StatusError: 429, the budget allows no disruption; 500, several budgets cover the pod.
    """
    done = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed", "Pending"}
    if done or pod["metadata"].get("deletionTimestamp") or not budgets:
        return None
    if len(budgets) > 1:
        text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise StatusError(500, "InternalError", text)
    budget = budgets[0]
    refusal = "Cannot evict pod as it would violate the pod's disruption budget."
    if not budget.processed:
        text = f"The disruption budget {budget.name} is still being processed by the server."
        raise too_many_requests_error(
            refusal, retry_after=10, causes=[StatusCause(field="", reason="DisruptionBudget", message=text)]
        )
    if budget.allowed <= 0:
        needs = f"needs {budget.desired} healthy pods and has {budget.current} currently"
        text = f"The disruption budget {budget.name} {needs}"
        raise too_many_requests_error(
            refusal, retry_after=0, causes=[StatusCause(field="", reason="DisruptionBudget", message=text)]
        )
    return budget


def parse_delete_options(eviction: Read, name: str) -> Read:
    """Returns the eviction's DeleteOptions.

    Raises:
        StatusError: 400, it names another pod.
    """
    given = (eviction.get("metadata") or {}).get("name")
    if given not in {None, "", name}:
        raise bad_request_error("name in URL does not match name in Eviction object")
    options: Read = eviction.get("deleteOptions") or {}
    return options


def label_selector_matches(selector: Read | None, labels: Read) -> bool:
    """True if a LabelSelector matches; an empty selector matches everything, None matches nothing."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_expression(each, labels) for each in selector.get("matchExpressions") or ())


def _expression(rule: Read, labels: Read) -> bool:
    value, values = labels.get(rule["key"]), rule.get("values") or ()
    match rule.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None
