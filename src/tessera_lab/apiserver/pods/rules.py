"""Validation of pods: ``k8s.io/kubernetes/pkg/apis/core/validation``. Pure.

The schema check (types, required fields, enumerations) runs before. This module has the rules between fields that pods
of this project need: names, mounts, resources, tolerations, scheduling gates.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.kube.quantity import format_quantity, parse_quantity
from tessera_lab.apiserver import field_errors
from tessera_lab.apiserver.field_errors import forbidden_cause, invalid_cause, label_causes
from tessera_lab.apiserver.interfaces import StatusCause
from tessera_lab.apiserver.pods.amounts import of_pods, parse_amounts, sum_of_containers

Read = Mapping[str, Any]

_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
#: What ``spec.resources`` of a pod can have.
_OF_PODS = ("cpu", "hugepages-", "memory")
_KINDS = ("requests", "limits")
_OPERATORS = ("Equal", "Exists")


def validate_pod(pod: Read) -> Sequence[StatusCause]:
    """Returns the errors of a pod."""
    return list(validate_pod_spec(pod.get("spec") or {}, "spec"))


def _resource_claims(spec: Read, path: str) -> Iterator[StatusCause]:
    """Yields the errors of a pod's claims of devices, and of their use in containers."""
    claims = spec.get("resourceClaims") or ()
    yield from _duplicates(claims, f"{path}.resourceClaims")
    for index, each in enumerate(claims):
        place = f"{path}.resourceClaims[{index}]"
        given = [each.get(key) for key in ("resourceClaimName", "resourceClaimTemplateName") if each.get(key)]
        if not each.get("name"):
            yield field_errors.required_cause(f"{place}.name")
        if not given:
            text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            yield invalid_cause(place, each, text)
        elif len(given) > 1:
            text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            yield invalid_cause(place, each, text)
    names = {str(each.get("name") or "") for each in claims}
    yield from _used_claims((spec.get("resources") or {}).get("claims") or (), f"{path}.resources.claims", names)
    for key in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(key) or ()):
            used = (container.get("resources") or {}).get("claims") or ()
            yield from _used_claims(used, f"{path}.{key}[{index}].resources.claims", names)


def _used_claims(used: Sequence[Read], path: str, names: set[str]) -> Iterator[StatusCause]:
    seen: set[tuple[Any, Any]] = set()
    for index, each in enumerate(used):
        found = (each.get("name"), each.get("request") or "")
        if not found[0]:
            yield field_errors.required_cause(f"{path}[{index}]")
        elif found in seen:
            yield field_errors.duplicate_cause(f"{path}[{index}]", found[0])
        elif found[0] not in names:
            text = (
                f"Not found: {field_errors.format_value(found[0])}: must be one of the names in pod.spec.resourceClaims"
            )
            listed = f": {', '.join(sorted(names))}" if names else " which is empty"
            yield StatusCause(field=f"{path}[{index}]", reason="FieldValueNotFound", message=text + listed)
        seen.add(found)


def validate_pod_spec(spec: Read, path: str) -> Iterator[StatusCause]:
    """Yields the errors of a pod's spec, in a pod or a template."""
    if not spec.get("containers"):
        yield field_errors.required_cause(f"{path}.containers")
    volumes = {each.get("name") for each in spec.get("volumes") or ()}
    seen: set[str] = set()
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for index, each in enumerate(spec.get(key) or ()):
            place = f"{path}.{key}[{index}]"
            yield from _container(each, place, volumes)
            name = each.get("name", "")
            if name in seen:
                yield field_errors.duplicate_cause(f"{place}.name", name)
            seen.add(name)
    yield from _duplicates(spec.get("volumes") or (), f"{path}.volumes")
    yield from _pod_resources(spec, f"{path}.resources")
    yield from _resource_claims(spec, path)
    for index, each in enumerate(spec.get("volumes") or ()):
        if each.get("hostPath"):
            yield from host_path(each["hostPath"], f"{path}.volumes[{index}].hostPath")
    yield from _gates(spec.get("schedulingGates") or (), f"{path}.schedulingGates")
    for index, each in enumerate(spec.get("tolerations") or ()):
        yield from _toleration(each, f"{path}.tolerations[{index}]")
    for key in ("terminationGracePeriodSeconds",):
        if (spec.get(key) or 0) < 0:
            yield invalid_cause(f"{path}.{key}", spec[key], "must be greater than or equal to 0")
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        yield invalid_cause(f"{path}.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        yield forbidden_cause(f"{path}.nodeName", "cannot be set until all schedulingGates have been cleared")


def host_path(source: Read, path: str) -> Iterator[StatusCause]:
    """Yields the errors of a folder of the host (``validateHostPathVolumeSource``)."""
    if not source.get("path"):
        yield field_errors.required_cause(f"{path}.path")
    else:
        yield from _no_backsteps(source["path"], f"{path}.path")


def _no_backsteps(value: str, path: str) -> Iterator[StatusCause]:
    if ".." in value.split("/"):
        yield invalid_cause(path, value, "must not contain '..'")


def _mount(mount: Read, path: str, index: int) -> Iterator[StatusCause]:
    if not mount.get("mountPath"):
        yield field_errors.required_cause(f"{path}[{index}].mountPath")
    for key in ("subPath", "subPathExpr"):
        value = mount.get(key) or ""
        if value.startswith("/"):
            yield invalid_cause(f"{path}.{key}", value, "must be a relative path")
        yield from _no_backsteps(value, f"{path}.{key}")


def _duplicates(items: Sequence[Read], path: str) -> Iterator[StatusCause]:
    seen: set[str] = set()
    for index, each in enumerate(items):
        name = each.get("name", "")
        if name in seen:
            yield field_errors.duplicate_cause(f"{path}[{index}].name", name)
        elif name:
            yield from label_causes(f"{path}[{index}].name", name)
        seen.add(name)


def _container(container: Read, path: str, volumes: set[Any]) -> Iterator[StatusCause]:
    name = container.get("name") or ""
    if name:
        yield from label_causes(f"{path}.name", name)
    if not container.get("image"):
        yield field_errors.required_cause(f"{path}.image")
    for index, each in enumerate(container.get("volumeMounts") or ()):
        yield from _mount(each, f"{path}.volumeMounts", index)
        if each.get("name") not in volumes:
            field = f"{path}.volumeMounts[{index}].name"
            yield StatusCause(
                field=field,
                reason="FieldValueNotFound",
                message=f"Not found: {field_errors.format_value(each.get('name'))}",
            )
    for index, each in enumerate(container.get("ports") or ()):
        port = each.get("containerPort")
        if isinstance(port, int) and not 0 < port < 65536:
            yield invalid_cause(f"{path}.ports[{index}].containerPort", port, "must be between 1 and 65535, inclusive")
    yield from validate_resources(container.get("resources") or {}, f"{path}.resources")


def validate_resources(resources: Read, path: str) -> Iterator[StatusCause]:
    """Yields the errors of a container's limits and requests."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            yield from _amount(name, amount, f"{path}.{kind}")
    for name, amount in requests.items():
        limit = limits.get(name)
        if limit is not None and not overcommits(name) and parse_quantity(str(limit)) != parse_quantity(str(amount)):
            text = f"must be equal to {name} limit of {limit}"
            yield invalid_cause(f"{path}.requests", str(amount), text)
        elif limit is not None and overcommits(name) and parse_quantity(str(amount)) > parse_quantity(str(limit)):
            text = f"must be less than or equal to {name} limit of {limit}"
            yield invalid_cause(f"{path}.requests", str(amount), text)
        elif limit is None and not overcommits(name):
            yield field_errors.required_cause(f"{path}.limits", "Limit must be set for non overcommitable resources")


def _pod_resources(spec: Read, path: str) -> Iterator[StatusCause]:
    """Yields the errors of the resources that a pod's containers have together (``validatePodResources``)."""
    own = spec.get("resources") or {}
    if own.get("claims"):
        yield forbidden_cause(f"{path}.claims", "claims may not be set for Resources at pod-level")
    for kind in _KINDS:
        for name in own.get(kind) or {}:
            if not of_pods(name):
                yield field_errors.unsupported_cause(f"{path}.{kind}[{name}]", name, _OF_PODS)
    allowed = {kind: {name: each for name, each in (own.get(kind) or {}).items() if of_pods(name)} for kind in _KINDS}
    yield from validate_resources(allowed, path)
    for kind in _KINDS:
        given = parse_amounts(allowed.get(kind))
        for name, needed in sum_of_containers(spec, kind).items():
            # A container may have a limit of its own above what the others leave.
            if given.get(name, needed) < needed and (kind == "requests" or name.startswith("hugepages-")):
                amount = format_quantity(needed, binary=name != "cpu")
                text = f"must be greater than or equal to aggregate container {kind} of {amount}"
                yield invalid_cause(f"{path}.{kind}[{name}]", str(allowed[kind][name]), text)
    limits = parse_amounts(allowed.get("limits"))
    for index, container in enumerate(spec.get("containers") or ()):
        theirs = (container.get("resources") or {}).get("limits") or {}
        for name, limit in parse_amounts(theirs).items():
            if limit > limits.get(name, limit):
                text = f"must be less than or equal to pod limits of {allowed['limits'][name]}"
                yield invalid_cause(f"{path}.containers[{index}][{name}].limits", str(theirs[name]), text)


def _amount(name: str, amount: Any, path: str) -> Iterator[StatusCause]:
    prefix, _, short = name.rpartition("/")
    if not _QUALIFIED.fullmatch(short) or len(short) > 63:
        yield invalid_cause(path, name, "must be a qualified resource name")
    elif not prefix and name not in _STANDARD and not name.startswith("hugepages-"):
        yield invalid_cause(path, name, "must be a standard resource type or fully qualified")
        yield invalid_cause(path, name, "must be a standard resource for containers")
    field = f"{path}[{name}]"
    try:
        value = parse_quantity(str(amount))
    except ValueError as error:
        yield invalid_cause(field, amount, str(error))
        return
    if value < 0:
        yield invalid_cause(field, str(amount), "must be greater than or equal to 0")
    elif prefix and value != int(value):
        yield invalid_cause(field, str(amount), "must be an integer")


def overcommits(name: str) -> bool:
    """True if requests may be less than limits: for all resources but extended resources and huge pages."""
    prefix = name.rpartition("/")[0]
    if name.startswith("hugepages-"):
        return False
    return not prefix or prefix == "kubernetes.io" or prefix.endswith(".kubernetes.io")


def _gates(gates: Sequence[Read], path: str) -> Iterator[StatusCause]:
    seen: set[str] = set()
    for index, each in enumerate(gates):
        name = each.get("name", "")
        prefix, slash, short = name.rpartition("/")
        if not _QUALIFIED.fullmatch(short) or (slash and not prefix):
            yield invalid_cause(
                f"{path}[{index}].name",
                name,
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
                "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            )
        if name in seen:
            yield field_errors.duplicate_cause(f"{path}[{index}]", name)
        seen.add(name)


def _toleration(toleration: Read, path: str) -> Iterator[StatusCause]:
    operator = toleration.get("operator") or "Equal"
    if operator not in _OPERATORS:
        yield field_errors.unsupported_cause(f"{path}.operator", operator, _OPERATORS)
    if operator == "Exists" and toleration.get("value"):
        yield invalid_cause(f"{path}.operator", toleration["value"], "value must be empty when `operator` is 'Exists'")
    if not toleration.get("key") and operator != "Exists":
        text = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid_cause(f"{path}.operator", operator, text)
    if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
        text = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid_cause(f"{path}.effect", toleration.get("effect", ""), text)
