"""Metadata from creation to removal: pure decisions that hold for every kind.

A delete removes the object at once, or sets its deletionTimestamp until the finalizers are empty; for pods, until
kubelet confirms with grace 0. An update that removes the last finalizer completes the delete.
Rules: ``k8s.io/apiserver/pkg/registry/rest`` and ``generic/registry``.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera.clock import parse_rfc3339, rfc3339
from tessera_lab.apiserver.field_errors import SUBDOMAIN, SUBDOMAIN_RULE, label_causes, too_long_cause
from tessera_lab.apiserver.interfaces import Obj, StatusCause

#: Letters of generated names (``k8s.io/apimachinery/pkg/util/rand``: no vowels, nothing easily confused).
SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
#: Longest name that generateName makes, suffix included.
MAX_GENERATED = 63
#: Limit of all annotations of an object, keys included, bytes (``TotalAnnotationSizeLimitB``).
MAX_ANNOTATIONS = 256 * 1024

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
_RFC1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_RFC1035_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def set_creation_metadata(obj: Obj, *, uid: str, now: str, generation: bool) -> None:
    """Sets the metadata that only the server sets on a new object."""
    meta = obj["metadata"]
    for key in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
        meta.pop(key, None)
    meta["uid"] = uid
    meta["creationTimestamp"] = now
    if generation:
        meta["generation"] = 1


def restore_immutable_metadata(obj: Obj, old: Mapping[str, Any]) -> None:
    """Restores the metadata that no update can change."""
    meta, was = obj["metadata"], old["metadata"]
    for key in (
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
        "namespace",
    ):
        if key in was:
            meta[key] = was[key]
        else:
            meta.pop(key, None)


def changes_generation(obj: Mapping[str, Any], old: Mapping[str, Any], *, status: bool) -> bool:
    """True if anything but metadata differs; ``generation`` counts such changes.

    Args:
        obj: the new state.
        old: the stored one.
        status: the kind has a status subresource, so ``status`` does not count.
    """
    skip = {"metadata", "apiVersion", "kind"} | ({"status"} if status else set())
    return any(obj.get(key) != old.get(key) for key in (obj.keys() | old.keys()) - skip)


def build_generated_name(base: str, suffix: str) -> str:
    """A name from generateName and a random suffix."""
    return base[: MAX_GENERATED - len(suffix)] + suffix


def validate_metadata(obj: Mapping[str, Any], name_rule: str) -> Sequence[StatusCause]:
    """Returns the errors of an object's metadata. ``name_rule``: ``subdomain``, ``label``, ``rfc1035`` or ``path``."""
    meta = obj["metadata"]
    causes = list(_name_causes(str(meta.get("name", "")), name_rule))
    for key, value in (meta.get("labels") or {}).items():
        causes += _key_causes(key, "metadata.labels")
        if not isinstance(value, str):
            continue
        if len(value) > 63:
            causes.append(_invalid("metadata.labels", value, "must be no more than 63 characters"))
        elif value and not _QUALIFIED.fullmatch(value):
            causes.append(_invalid("metadata.labels", value, _VALUE_RULE))
    annotations = meta.get("annotations") or {}
    for key in annotations:
        causes += _key_causes(key.lower(), "metadata.annotations")
    if sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations.items()) > MAX_ANNOTATIONS:
        causes.append(too_long_cause("metadata.annotations", MAX_ANNOTATIONS))
    for index, owner in enumerate(meta.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                text = f"{field} must not be empty"
                causes.append(_invalid(f"metadata.ownerReferences[{index}].{field}", owner.get(field, ""), text))
    for name in meta.get("finalizers") or ():
        causes += _key_causes(name, "metadata.finalizers")
    return causes


def _invalid(field: str, value: object, rule: str) -> StatusCause:
    shown = msgspec.json.encode(value).decode()
    return StatusCause(field=field, reason="FieldValueInvalid", message=f"Invalid value: {shown}: {rule}")


def _name_causes(name: str, rule: str) -> Sequence[StatusCause]:
    if not name:
        return [
            StatusCause(
                field="metadata.name",
                reason="FieldValueRequired",
                message="Required value: name or generateName is required",
            )
        ]
    if rule == "path":
        bad = "may not be '.' or '..'" if name in {".", ".."} else "may not contain '/'" if "/" in name else ""
        bad = bad or ("may not contain '%'" if "%" in name else "")
        return [_invalid("metadata.name", name, bad)] if bad else []
    rfc1035 = rule == "rfc1035"
    pattern, text = (_RFC1035, _RFC1035_RULE) if rfc1035 else (SUBDOMAIN, SUBDOMAIN_RULE)
    longest = 63 if rfc1035 or rule == "label" else 253
    if len(name) > longest:
        return [_invalid("metadata.name", name, f"must be no more than {longest} characters")]
    if rule == "label":
        return list(label_causes("metadata.name", name))
    return [] if pattern.fullmatch(name) else [_invalid("metadata.name", name, text)]


def _key_causes(key: str, field: str) -> Sequence[StatusCause]:
    prefix, slash, name = key.rpartition("/")
    if slash and not (prefix and SUBDOMAIN.fullmatch(prefix) and len(prefix) <= 253):
        return [_invalid(field, key, "prefix part " + SUBDOMAIN_RULE)]
    if not name:
        return [_invalid(field, key, "name part must be non-empty")]
    if len(name) > 63:
        return [_invalid(field, key, "name part must be no more than 63 characters")]
    return [] if _QUALIFIED.fullmatch(name) else [_invalid(field, key, _QUALIFIED_RULE)]


def validate_new_finalizers(obj: Mapping[str, Any], old: Mapping[str, Any]) -> Sequence[StatusCause]:
    """Returns errors if an object that is being deleted gets further finalizers."""
    was = old["metadata"]
    if not was.get("deletionTimestamp"):
        return ()
    added = [f for f in obj["metadata"].get("finalizers") or () if f not in (was.get("finalizers") or ())]
    if not added:
        return ()
    shown = ", ".join(f'"{f}"' for f in added)
    text = (
        "Forbidden: no new finalizers can be added if the object is being deleted, "
        f"found new finalizers []string{{{shown}}}"
    )
    return [StatusCause(field="metadata.finalizers", reason="FieldValueForbidden", message=text)]


def is_deletion_complete(obj: Mapping[str, Any]) -> bool:
    """True if the server must remove an object: it is being deleted, has no finalizers and no grace left."""
    meta = obj["metadata"]
    if not meta.get("deletionTimestamp") or meta.get("finalizers"):
        return False
    if (obj.get("spec") or {}).get("finalizers") and obj.get("kind") == "Namespace":
        return False
    return not meta.get("deletionGracePeriodSeconds")


def effective_options(obj: Obj, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns DeleteOptions with the grace period that a pod gets, which admission sees too (``CheckGracefulDelete``).

    A pod that runs on no node has none.
    """
    if not _is_pod(obj):
        return options
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    under_way = obj["metadata"].get("deletionGracePeriodSeconds")
    grace = options.get("gracePeriodSeconds")
    if grace is None:
        grace = spec.get("terminationGracePeriodSeconds", 30) if under_way is None else under_way
    if not spec.get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
        grace = 0
    return {**options, "gracePeriodSeconds": 1 if grace < 0 else int(grace)}


class Deletion(msgspec.Struct, frozen=True):
    """Result of a delete: the object's next state, and whether it is removed at once."""

    state: Obj
    gone: bool


def decide_deletion(obj: Obj, options: Mapping[str, Any], now: float) -> Deletion:
    """Decides a delete; ``obj`` is a private copy.

    Args:
        obj: the stored state.
        options: DeleteOptions, as :func:`effective_options` returns them.
        now: seconds since 1970.
    """
    meta = obj["metadata"]
    _set_propagation_finalizers(meta, options)
    pending = bool(meta.get("finalizers")) or (obj.get("kind") == "Namespace" and bool(obj["spec"].get("finalizers")))
    grace = options.get("gracePeriodSeconds", 0) if _is_pod(obj) else 0
    was = meta.get("deletionTimestamp")
    if was and grace and meta.get("deletionGracePeriodSeconds") is not None:
        if grace < meta["deletionGracePeriodSeconds"]:
            requested = parse_rfc3339(was) - meta["deletionGracePeriodSeconds"]
            _mark_deleted(meta, max(requested + grace, now), grace)
        return Deletion(obj, gone=False)
    if grace == 0 and not pending:
        if _is_pod(obj):
            meta["deletionTimestamp"] = was or rfc3339(now)
            meta["deletionGracePeriodSeconds"] = 0
        return Deletion(obj, gone=True)
    if was and not grace:
        meta["deletionGracePeriodSeconds"] = 0
        return Deletion(obj, gone=False)
    if not was:
        _mark_deleted(meta, now + grace, grace)
    return Deletion(obj, gone=False)


def _mark_deleted(meta: Obj, at: float, grace: int) -> None:
    meta["deletionTimestamp"] = rfc3339(at)
    meta["deletionGracePeriodSeconds"] = grace
    if "generation" in meta:
        meta["generation"] += 1


def _is_pod(obj: Mapping[str, Any]) -> bool:
    return obj.get("kind") == "Pod" and obj.get("apiVersion") == "v1"


def _set_propagation_finalizers(meta: Obj, options: Mapping[str, Any]) -> None:
    policy = options.get("propagationPolicy")
    if policy is None and options.get("orphanDependents") is not None:
        policy = "Orphan" if options["orphanDependents"] else "Background"
    names = list(meta.get("finalizers") or ())
    if policy is None and meta.get("deletionTimestamp"):
        return
    desired = {"Orphan": ORPHAN, "Foreground": FOREGROUND}.get(policy or "")
    if policy is None and (ORPHAN in names or FOREGROUND in names):
        return
    if policy is not None:
        names = [name for name in names if name not in {ORPHAN, FOREGROUND}]
    if desired:
        names.append(desired)
    if names:
        meta["finalizers"] = names
    else:
        meta.pop("finalizers", None)
