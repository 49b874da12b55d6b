"""Rules of a write: it must be about the stored object, and it changes only the fields that its path may change.

Preconditions are resourceVersion and uid. A PUT with another uid is a conflict. A patch with another uid is invalid,
since a uid cannot change. A patch of a custom resource's status may have another uid: the server ignores the metadata
in it.

A write to a resource with a status subresource leaves the status as it is; a write to the status changes nothing else.
"""

from collections.abc import Mapping
from typing import Any

from tessera_lab.apiserver.interfaces import GroupResource, Obj, StatusCause
from tessera_lab.apiserver.kinds.metadata import restore_immutable_metadata
from tessera_lab.apiserver.request.server_state import ResourceRequest
from tessera_lab.apiserver.resource_types import ResourceType
from tessera_lab.apiserver.status import MODIFIED, StatusError, conflict_error, invalid_error
from tessera_lab.apiserver.storage.store import deep_copy
from tessera_lab.apiserver.validation import find_strategy

Read = Mapping[str, Any]


def check_state(request: ResourceRequest, obj: Read, old: Read, *, put: bool) -> None:
    """Refuses a wanted object whose resourceVersion or uid is not that of the stored object.

    Args:
        request: the request, which names the object.
        obj: the wanted object.
        old: the stored one in the same version.
        put: the body is a whole object; some kinds then require its resourceVersion.

    Raises:
        StatusError: 409, or 422 of a patch with another uid or a PUT without resourceVersion.
    """
    meta, was = obj["metadata"], old["metadata"]
    other_life = meta.get("uid") not in {None, "", was["uid"]}
    if other_life and put:
        raise _is_other_uid(request, meta["uid"], was["uid"])
    version = meta.get("resourceVersion")
    if version in {None, "", "0"}:
        if put and not find_strategy(request.resource).unconditional:
            raise _conflict_error(request, "resourceVersion", "Invalid value: 0x0: must be specified for an update")
    elif version != was["resourceVersion"]:
        raise conflict_error(request.resource.group, request.resource.plural, request.route.name, MODIFIED)
    if other_life and not _takes_status_only(request):
        raise _conflict_error(request, "uid", f'Invalid value: "{meta["uid"]}": field is immutable')


def check_deletion(request: ResourceRequest, stored: Read, name: str) -> None:
    """Refuses a deletion whose preconditions name another uid or another resourceVersion.

    Raises:
        StatusError: 409.
    """
    desired = request.options.get("preconditions") or {}
    for key, shown, guess in (
        ("uid", "UID", "deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", "modified"),
    ):
        is_now = stored["metadata"][key]
        if desired.get(key) not in {None, is_now}:
            reason = (
                f"the {shown} in the precondition ({desired[key]}) does not match the {shown} in record ({is_now}). "
                f"The object might have been {guess}"
            )
            raise conflict_error(request.resource.group, request.resource.kind, name, reason)


def select_applied_fields(request: ResourceRequest, config: Obj) -> Obj:
    """Returns the part of a configuration that this subresource may change."""
    if not request.resource.status_subresource:
        return config
    if request.route.subresource == "status":
        return {key: value for key, value in config.items() if key in {"apiVersion", "kind", "metadata", "status"}}
    return {key: value for key, value in config.items() if key != "status"}


def restore_protected_fields(request: ResourceRequest, obj: Obj, old: Obj) -> Obj:
    """Returns the object with every field restored that this subresource may not change."""
    obj.setdefault("metadata", {})
    if request.route.subresource == "status":
        # managedFields, by far the largest part, are replaced whole and never changed in place.
        meta = {key: value if key == "managedFields" else deep_copy(value) for key, value in old["metadata"].items()}
        restored = {**old, "metadata": meta}
        _copy_field(restored, obj, "status")
        if request.resource.storage in _STATUS_WRITES_METADATA:
            for key in ("labels", "annotations"):
                _copy_field(restored["metadata"], obj["metadata"], key)
        _copy_field(restored["metadata"], obj["metadata"], "managedFields")
        find_strategy(request.resource).prepare_status(restored, old)
        return restored
    restore_immutable_metadata(obj, old)
    if request.resource.status_subresource and request.route.subresource == "":
        _copy_field(obj, old, "status")
        find_strategy(request.resource).prepare_update(obj, old)
    return obj


def starts_without_status(resource: ResourceType) -> bool:
    """True if a create drops ``status``; a node brings its own, as kubelet registers it."""
    return resource.status_subresource and resource.storage != GroupResource("", "nodes")


def _is_other_uid(request: ResourceRequest, desired: str, is_now: str) -> StatusError:
    reason = f"Precondition failed: UID in precondition: {desired}, UID in object meta: {is_now}"
    return conflict_error(request.resource.group, request.resource.plural, request.route.name, reason)


def _conflict_error(request: ResourceRequest, field: str, text: str) -> StatusError:
    cause = StatusCause(field=f"metadata.{field}", reason="FieldValueInvalid", message=text)
    return invalid_error(request.resource.group, request.resource.kind, request.route.name, [cause])


def _takes_status_only(request: ResourceRequest) -> bool:
    return request.route.subresource == "status" and bool(request.resource.served_crd)


#: Kinds whose status subresource writes labels and annotations too.
_STATUS_WRITES_METADATA = frozenset(GroupResource("", plural) for plural in ("namespaces", "nodes", "pods"))


def _copy_field(to: Obj, source: Mapping[str, Any], key: str) -> None:
    if key in source:
        to[key] = source[key]
    else:
        to.pop(key, None)
