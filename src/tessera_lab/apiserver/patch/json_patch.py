"""JSON patch (RFC 6902) and merge patch (RFC 7386). Pure; the given object is not changed.

See :mod:`strategic_merge` and :mod:`server_side_apply` for the other two forms of patches.

Why no library: jsonpatch 1.47 copies the whole document first (234 us against 41 us for three operations on a pod of
five containers), and its errors repeat the whole document instead of kube-apiserver's text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.interfaces import Obj
from tessera_lab.apiserver.status import StatusError, bad_request_error
from tessera_lab.apiserver.storage.store import deep_copy

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

#: Most operations in one JSON patch, as kube-apiserver limits them.
MAX_OPERATIONS = 10_000


def merge_patch(target: Any, patch: Any) -> Any:
    """The target with the patch merged in: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, Mapping):
        return deep_copy(patch)
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def json_patch(target: Obj, operations: Any) -> Obj:
    """The target with the operations applied in order.

    Raises:
        StatusError: 400, the patch is malformed; 413, too many operations; 422, an operation does not fit.
    """
    if not isinstance(operations, Sequence) or isinstance(operations, str):
        raise bad_request_error("json: cannot unmarshal the patch into a list of operations")
    if len(operations) > MAX_OPERATIONS:
        text = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise StatusError(413, "RequestEntityTooLarge", text)
    document: dict[str, Any] = {"": deep_copy(target)}
    for operation in operations:
        if not isinstance(operation, Mapping) or not isinstance(operation.get("path"), str):
            raise bad_request_error("a JSON patch operation is an object with op and path")
        _apply_operation(document, operation)
    result = document[""]
    if not isinstance(result, dict):
        raise _patch_error("the patch makes the object something else")
    return result


def _patch_error(reason: str) -> StatusError:
    return StatusError(422, "Invalid", f"the server rejected our request due to an error in our request: {reason}")


def _apply_operation(document: dict[str, Any], operation: Mapping[str, Any]) -> None:
    path = _parse_pointer(operation["path"])
    match operation.get("op"):
        case "add":
            _add(document, path, deep_copy(_operand(operation)))
        case "remove":
            _remove(document, path)
        case "replace":
            _find(document, path)
            _replace(document, path, deep_copy(_operand(operation)))
        case "test":
            if _find(document, path, missing=None) != operation.get("value"):
                raise _patch_error(f"testing path {operation['path']} failed")
        case "move":
            _add(document, path, _remove(document, _parse_pointer(operation.get("from", ""))))
        case "copy":
            _add(document, path, deep_copy(_find(document, _parse_pointer(operation.get("from", "")))))
        case other:
            raise bad_request_error(f'Unexpected kind of JSON patch operation: "{other}"')


def _operand(operation: Mapping[str, Any]) -> Any:
    if "value" not in operation:
        raise bad_request_error(f"JSON patch operation {operation.get('op')} {operation['path']} has no value")
    return operation["value"]


def _parse_pointer(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise bad_request_error(f'JSON pointer "{pointer}" does not start with "/"')
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")]


_RAISE = object()


def _find(document: Any, path: Sequence[str], missing: Any = _RAISE) -> Any:
    value = document
    for step in path:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            if missing is not _RAISE:
                return missing
            raise _patch_error(f"path {'/'.join(path)} does not exist") from None
    return value


def _parent(document: Any, path: Sequence[str]) -> Any:
    parent = _find(document, path[:-1])
    if not isinstance(parent, dict | list):
        raise _patch_error(f"path {'/'.join(path)} does not exist")
    return parent


def _index(parent: Sequence[Any], step: str, last: int) -> int:
    try:
        index = int(step)
    except ValueError:
        raise _patch_error(f'"{step}" is no index of a list') from None
    index = index + len(parent) if index < 0 else index
    if not 0 <= index <= last:
        raise _patch_error(f"index {step} is out of the list's bounds")
    return index


def _add(document: Any, path: Sequence[str], value: Any) -> None:
    parent = _parent(document, path)
    if isinstance(parent, dict):
        parent[path[-1]] = value
    elif path[-1] == "-":
        parent.append(value)
    else:
        parent.insert(_index(parent, path[-1], len(parent)), value)


def _replace(document: Any, path: Sequence[str], value: Any) -> None:
    parent = _parent(document, path)
    if isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        parent[_index(parent, path[-1], len(parent) - 1)] = value


def _remove(document: Any, path: Sequence[str]) -> Any:
    value = _find(document, path)
    parent = _parent(document, path)
    if isinstance(parent, dict):
        del parent[path[-1]]
    else:
        del parent[_index(parent, path[-1], len(parent) - 1)]
    return value
