"""Volumes, claims and storage classes: defaults and rules. Pure; ``pkg/apis/{core,storage}/{v1,validation}``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.kube.quantity import parse_quantity
from tessera_lab.apiserver import field_errors
from tessera_lab.apiserver.field_errors import forbidden_cause, invalid_cause
from tessera_lab.apiserver.interfaces import Obj, StatusCause
from tessera_lab.apiserver.pods.defaults import canonicalize_quantities
from tessera_lab.apiserver.pods.rules import host_path

Read = Mapping[str, Any]

_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
#: Fields of a PersistentVolume's spec that are not its source.
_NOT_A_SOURCE = frozenset(
    {
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    }
)
_CLAIM_RULE = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)


def default_claim(claim: Obj) -> None:
    """Defaults of a PersistentVolumeClaim."""
    spec = claim.setdefault("spec", {})
    if isinstance(spec.get("resources"), dict):
        canonicalize_quantities(spec["resources"], "requests", "limits")


def prepare_new_claim(claim: Obj) -> None:
    """The status that a new claim starts with."""
    claim["status"] = {"phase": "Pending"}


def default_volume(volume: Obj) -> None:
    """Defaults of a PersistentVolume."""
    spec = volume.setdefault("spec", {})
    canonicalize_quantities(spec, "capacity")
    reference = spec.get("claimRef")
    if isinstance(reference, dict):
        reference.setdefault("kind", "PersistentVolumeClaim")
        reference.setdefault("apiVersion", "v1")


def prepare_new_volume(volume: Obj) -> None:
    """The status that a new volume starts with."""
    volume["status"] = {"phase": "Pending"}


def validate_claim(claim: Read) -> Sequence[StatusCause]:
    """Returns the errors of a PersistentVolumeClaim."""
    return list(validate_claim_spec(claim.get("spec") or {}, "spec"))


def validate_claim_spec(spec: Read, path: str) -> Iterator[StatusCause]:
    """Yields the errors of a claim's spec, in a claim or a template."""
    yield from _modes(spec, path, "at least 1 access mode is required")
    amount = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if amount is None:
        yield field_errors.required_cause(f"{path}.resources[storage]")
    elif _positive(amount) is False:
        yield invalid_cause(f"{path}.resources[storage]", str(amount), "must be greater than zero")


def validate_claim_update(claim: Read, old: Read) -> Sequence[StatusCause]:
    """Refuses changes of a claim's spec, except its size once bound and the volume that it is being bound to."""
    new, was = _without_size(claim["spec"]), _without_size(old["spec"])
    if not was.get("volumeName"):
        new.pop("volumeName", None)
        was.pop("volumeName", None)
    if was.get("storageClassName") is None:  # the claim may get a default class later
        new.pop("storageClassName", None)
        was.pop("storageClassName", None)
    return () if new == was else [forbidden_cause("spec", _CLAIM_RULE)]


def _without_size(spec: Read) -> Obj:
    resources = {key: value for key, value in (spec.get("resources") or {}).items() if key != "requests"}
    return {**{key: value for key, value in spec.items() if key != "resources"}, "resources": resources}


def validate_volume(volume: Read) -> Sequence[StatusCause]:
    """Returns the errors of a PersistentVolume."""
    return list(_volume(volume.get("spec") or {}))


def _volume(spec: Read) -> Iterator[StatusCause]:
    yield from _modes(spec, "spec", "")
    capacity = spec.get("capacity") or {}
    if not capacity:
        yield field_errors.required_cause("spec.capacity")
    elif set(capacity) != {"storage"}:
        yield field_errors.unsupported_cause("spec.capacity", capacity, ["storage"])
    sources = sorted(key for key, value in spec.items() if key not in _NOT_A_SOURCE and value is not None)
    if not sources:
        yield field_errors.required_cause("spec", "must specify a volume type")
    if spec.get("hostPath"):
        yield from host_path(spec["hostPath"], "spec.hostPath")
    for extra in sources[1:]:
        yield forbidden_cause(f"spec.{extra}", "may not specify more than 1 volume type")
    if sources == ["local"] and not (spec.get("nodeAffinity") or {}).get("required"):
        yield field_errors.required_cause("spec.nodeAffinity", "Local volume requires node affinity")


def validate_volume_update(volume: Read, old: Read) -> Sequence[StatusCause]:
    """Refuses a change of a volume's source; its node affinity may be set once."""
    changed = [
        key
        for key in sorted({*volume["spec"], *old["spec"]} - _NOT_A_SOURCE)
        if volume["spec"].get(key) != old["spec"].get(key)
    ]
    if changed:
        return [
            forbidden_cause("spec.persistentvolumesource", "spec.persistentvolumesource is immutable after creation")
        ]
    was, new = old["spec"].get("nodeAffinity"), volume["spec"].get("nodeAffinity")
    return () if was is None or was == new else [_immutable("spec.nodeAffinity", new)]


def validate_storage_class(item: Read) -> Sequence[StatusCause]:
    """Returns the errors of a StorageClass."""
    found = [] if item.get("provisioner") else [field_errors.required_cause("provisioner")]
    for index, term in enumerate(item.get("allowedTopologies") or ()):
        for number, test in enumerate(term.get("matchLabelExpressions") or ()):
            path = f"allowedTopologies[{index}].matchLabelExpressions[{number}]"
            found += [field_errors.required_cause(f"{path}.{key}") for key in ("key", "values") if not test.get(key)]
    return found


def validate_storage_class_update(item: Read, old: Read) -> Sequence[StatusCause]:
    """Refuses changes of the immutable fields of a StorageClass."""
    fields = ("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode")
    return [_immutable(field, item.get(field)) for field in fields if (item.get(field) or {}) != (old.get(field) or {})]


def _modes(spec: Read, path: str, reason: str) -> Iterator[StatusCause]:
    modes = spec.get("accessModes") or ()
    if not modes:
        yield field_errors.required_cause(f"{path}.accessModes", reason)
    for index, mode in enumerate(modes):
        if mode not in _MODES:
            yield field_errors.unsupported_cause(f"{path}.accessModes[{index}]", mode, _MODES)


def _positive(amount: Any) -> bool | None:
    """True if a quantity is above zero; None if it cannot be read, which decoding refuses."""
    try:
        return parse_quantity(str(amount)) > 0
    except ValueError:
        return None


def _immutable(field: str, value: Any) -> StatusCause:
    return invalid_cause(field, value, "field is immutable")
