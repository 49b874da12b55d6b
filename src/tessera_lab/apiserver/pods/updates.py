"""Validation of pod updates: ``ValidatePodUpdate`` of ``k8s.io/kubernetes/pkg/apis/core/validation``. Pure.

An update may change images and the active deadline, add tolerations and remove scheduling gates. While a pod is gated,
an update may also add to its nodeSelector and tighten its required node affinity.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.field_errors import forbidden_cause, invalid_cause
from tessera_lab.apiserver.interfaces import Obj, StatusCause
from tessera_lab.apiserver.storage.store import deep_copy

Read = Mapping[str, Any]

_FROZEN = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"
)
_NO_MUTATION = "only additions are allowed (no mutations or deletions)"
_TERMS = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"


def validate_pod_update(pod: Read, old: Read) -> Sequence[StatusCause]:
    """Returns the errors of changes that a pod's spec does not allow."""
    new, was = pod.get("spec") or {}, old.get("spec") or {}
    if new == was:
        return ()
    found = [*_counts(new, was), *_deadline(new, was), *_tolerations(new, was), *_gates(new, was)]
    if found:
        return found
    gated = bool(was.get("schedulingGates"))
    if gated:
        found = [*_selector(new, was), *_affinity(new, was)]
    if found:
        return found
    remaining = _without_mutable(new, was, gated=gated)
    if remaining == was:
        return ()
    differing = sorted(key for key in remaining.keys() | was.keys() if remaining.get(key) != was.get(key))
    shown = {key: [was.get(key), remaining.get(key)] for key in differing}
    return [forbidden_cause("spec", _FROZEN + msgspec.json.encode(shown).decode())]


def _counts(new: Read, was: Read) -> Iterator[StatusCause]:
    for key in ("containers", "initContainers"):
        if len(new.get(key) or ()) != len(was.get(key) or ()):
            yield forbidden_cause(f"spec.{key}", "pod updates may not add or remove containers")


def _deadline(new: Read, was: Read) -> Iterator[StatusCause]:
    before, after = was.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds")
    if before is None or before == after:
        return
    if after is None:
        yield invalid_cause("spec.activeDeadlineSeconds", None, "must not update from a positive integer to nil value")
    elif after > before:
        yield invalid_cause(
            "spec.activeDeadlineSeconds", after, f"must be less than or equal to previous value: {before}"
        )


def _tolerations(new: Read, was: Read) -> Iterator[StatusCause]:
    """Refuses removed tolerations and changed ones, except the seconds of one with NoExecute."""
    present = [_timeless(each) for each in new.get("tolerations") or ()]
    for each in was.get("tolerations") or ():
        if _timeless(each) not in present:
            text = "existing toleration can not be modified except its tolerationSeconds"
            yield forbidden_cause("spec.tolerations", text)
            return


def _timeless(toleration: Read) -> Read:
    if toleration.get("effect") != "NoExecute":
        return toleration
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _gates(new: Read, was: Read) -> Iterator[StatusCause]:
    before = {each.get("name") for each in was.get("schedulingGates") or ()}
    for each in new.get("schedulingGates") or ():
        if each.get("name") not in before:
            text = f"only deletion is allowed, but found new scheduling gate '{each.get('name')}'"
            yield forbidden_cause("spec.schedulingGates", text)


def _selector(new: Read, was: Read) -> Iterator[StatusCause]:
    before, after = was.get("nodeSelector") or {}, new.get("nodeSelector") or {}
    if any(after.get(key) != value for key, value in before.items()):
        yield invalid_cause(
            "spec.nodeSelector", after, "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        )


def _affinity(new: Read, was: Read) -> Iterator[StatusCause]:
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    before, after = _terms(was), _terms(new)
    if before is None:
        return
    if after is None:
        yield invalid_cause(path, None, _NO_MUTATION)
    elif len(before) != len(after):
        yield invalid_cause(f"{path}.nodeSelectorTerms", after, _TERMS)
    else:
        for index, (then, now) in enumerate(zip(before, after, strict=True)):
            for key in ("matchExpressions", "matchFields"):
                rules = now.get(key) or []
                if (then.get(key) or []) != rules[: len(then.get(key) or [])]:
                    yield invalid_cause(f"{path}.nodeSelectorTerms[{index}]", now, _NO_MUTATION)


def _terms(spec: Read) -> Sequence[Read] | None:
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    return None if affinity is None else affinity.get("nodeSelectorTerms") or []


def _without_mutable(new: Read, was: Read, *, gated: bool) -> Obj:
    """Returns the new spec with the old value of every field that may change."""
    remaining: Obj = deep_copy(new)
    for key in ("containers", "initContainers"):
        for now, then in zip(remaining.get(key) or (), was.get(key) or (), strict=True):
            if now.get("name") == then.get("name"):
                now["image"] = then.get("image")
    keys = ["activeDeadlineSeconds", "tolerations", "schedulingGates"]
    if was.get("terminationGracePeriodSeconds", 0) < 0 and new.get("terminationGracePeriodSeconds") == 1:
        keys.append("terminationGracePeriodSeconds")
    if gated:
        keys += ["nodeSelector"]
        _restore_affinity(remaining, was)
    for key in keys:
        if key in was:
            remaining[key] = was[key]
        else:
            remaining.pop(key, None)
    return remaining


def _restore_affinity(remaining: Obj, was: Read) -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = remaining.get("affinity")
    node = (affinity or {}).get("nodeAffinity")
    before = ((was.get("affinity") or {}).get("nodeAffinity") or {}).get(required)
    if not affinity or node is None:
        return
    if before is None:
        node.pop(required, None)
    else:
        node[required] = before
    if not node and not (was.get("affinity") or {}).get("nodeAffinity"):
        affinity.pop("nodeAffinity")
    if not affinity and not was.get("affinity"):
        remaining.pop("affinity")
