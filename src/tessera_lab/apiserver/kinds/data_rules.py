"""Rules of kinds that have few: Nodes, ConfigMaps and Secrets, ClusterRoles, APIServices. Pure.

Those of ConfigMaps and Secrets are of ``pkg/apis/core/validation``; the schema check has already ensured that values
are texts, and base64 in fields of bytes. Of a ClusterRole the ``aggregationRule`` is checked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tessera.kube.quantity import count_or_zero
from tessera_lab.apiserver.field_errors import forbidden_cause, invalid_cause, required_cause, too_long_cause
from tessera_lab.apiserver.interfaces import Obj, StatusCause

Read = Mapping[str, Any]

#: Limit of all values of one object, bytes (``MaxSecretSize``).
MAX_DATA = 1 << 20
_LONGEST_KEY = 253
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_RULE = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_ACCOUNT = "kubernetes.io/service-account.name"

#: Required keys of a Secret, by its type.
_TYPES: Mapping[str, tuple[str, ...]] = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_SELECTORS = "aggregationRule.clusterRoleSelectors"
_USUAL_PORT = 443
_GROUP_PRIORITY, _VERSION_PRIORITY = 20_000, 1_000


def validate_node(obj: Read, _stored: Read = MappingProxyType({})) -> Sequence[StatusCause]:
    """Returns the errors of a Node's amounts (``ValidateNodeResources``)."""
    return list(_node(obj))


def _node(obj: Read) -> Iterator[StatusCause]:
    for part in ("capacity", "allocatable"):
        for name, amount in ((obj.get("status") or {}).get(part) or {}).items():
            if count_or_zero(str(amount)) < 0:
                text = "must be greater than or equal to 0"
                yield invalid_cause(f"status.{part}.{name}", str(amount), text)


def validate_config_map(obj: Read) -> Sequence[StatusCause]:
    """Returns the errors of a ConfigMap."""
    return list(_config_map(obj))


def _config_map(obj: Read) -> Iterator[StatusCause]:
    texts, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    for key in texts:
        yield from _key("data", key)
        if key in binary:
            yield invalid_cause(f"data[{key}]", key, "duplicate of key present in binaryData")
    for key in binary:
        yield from _key("binaryData", key)
    if sum(len(each.encode()) for each in texts.values()) + _decoded_size(binary) > MAX_DATA:
        yield too_long_cause("[]", MAX_DATA)


def validate_secret(obj: Read) -> Sequence[StatusCause]:
    """Returns the errors of a Secret."""
    return list(_secret(obj))


def _secret(obj: Read) -> Iterator[StatusCause]:
    data = obj.get("data") or {}
    for key in data:
        yield from _key("data", key)
    if _decoded_size(data) > MAX_DATA:
        yield too_long_cause("data", MAX_DATA)
    kind = obj.get("type")
    for key in _TYPES.get(kind or "", ()):
        if key not in data:
            yield required_cause(f"data[{key}]")
    if kind == "kubernetes.io/basic-auth" and not data.keys() & {"username", "password"}:
        yield required_cause("data[username]")
        yield required_cause("data[password]")
    if kind == "kubernetes.io/service-account-token" and not (obj["metadata"].get("annotations") or {}).get(_ACCOUNT):
        yield required_cause(f"metadata.annotations[{_ACCOUNT}]")


def validate_secret_update(obj: Read, old: Read) -> Sequence[StatusCause]:
    """Refuses a change of a Secret's type, and any change of an immutable Secret."""
    found = list(validate_data_update(obj, old))
    if obj.get("type") != old.get("type"):
        found.append(invalid_cause("type", obj.get("type"), "field is immutable"))
    return found


def validate_data_update(obj: Read, old: Read) -> Sequence[StatusCause]:
    """Refuses changes of an object that is marked immutable."""
    if not old.get("immutable"):
        return ()
    same = all(obj.get(key) == old.get(key) for key in ("data", "binaryData", "immutable"))
    return () if same else [forbidden_cause("data", "field is immutable when `immutable` is set")]


def _key(field: str, key: str) -> Iterator[StatusCause]:
    place = f"{field}[{key}]"
    if len(key) > _LONGEST_KEY:
        yield invalid_cause(place, key, f"must be no more than {_LONGEST_KEY} characters")
    if not _KEY.fullmatch(key):
        yield invalid_cause(place, key, _KEY_RULE)
    if key in {".", ".."}:
        yield invalid_cause(place, key, f"must not be '{key}'")
    elif key.startswith(".."):
        yield invalid_cause(place, key, "must not start with '..'")


def _decoded_size(values: Mapping[str, str]) -> int:
    """Counts the bytes that base64 texts encode."""
    return sum(3 * len(each) // 4 - each[-2:].count("=") for each in values.values())


def validate_cluster_role(obj: Read) -> Sequence[StatusCause]:
    """Returns the errors of an aggregation rule: it must select, by operators that exist."""
    rule = obj.get("aggregationRule")
    if rule is None:
        return ()
    selectors = rule.get("clusterRoleSelectors") or ()
    if not selectors:
        text = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        return [required_cause(_SELECTORS, text)]
    return [
        cause
        for at, selector in enumerate(selectors)
        for number, each in enumerate(selector.get("matchExpressions") or ())
        for cause in _expression(f"{_SELECTORS}[{at}].matchExpressions[{number}]", each)
    ]


def _expression(field: str, expression: Read) -> Iterator[StatusCause]:
    operator, values = expression.get("operator"), expression.get("values")
    match operator:
        case "In" | "NotIn" if not values:
            yield required_cause(f"{field}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist" if values:
            text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield forbidden_cause(f"{field}.values", text)
        case "In" | "NotIn" | "Exists" | "DoesNotExist":
            pass
        case _:
            yield invalid_cause(f"{field}.operator", operator, "not a valid selector operator")


def default_api_service(service: Obj) -> None:
    """Sets the default port of the Service."""
    reference = service.setdefault("spec", {}).get("service")
    if isinstance(reference, dict):
        reference.setdefault("port", _USUAL_PORT)


def validate_api_service(service: Read) -> Sequence[StatusCause]:
    """Returns the errors of an APIService."""
    return list(_causes(service))


def _causes(service: Read) -> Iterator[StatusCause]:
    spec = service.get("spec") or {}
    group, version, name = spec.get("group", ""), spec.get("version", ""), service["metadata"].get("name", "")
    if name != f"{version}.{group}":
        yield invalid_cause("metadata.name", name, f'must be `spec.version+"."+spec.group`: "{version}.{group}"')
    if not group and version != "v1":
        yield required_cause("spec.group", "only v1 may have an empty group and it better be legacy kube")
    for field, highest in (("groupPriorityMinimum", _GROUP_PRIORITY), ("versionPriority", _VERSION_PRIORITY)):
        if not 0 < spec.get(field, 0) <= highest:
            yield invalid_cause(f"spec.{field}", spec.get(field, 0), f"must be positive and less than {highest}")
    reference = spec.get("service")
    if reference is None:
        if spec.get("caBundle"):
            yield invalid_cause("spec.caBundle", "bytes", "local APIServices may not have a caBundle")
        if spec.get("insecureSkipTLSVerify"):
            reason = "local APIServices may not have insecureSkipTLSVerify"
            yield invalid_cause("spec.insecureSkipTLSVerify", True, reason)
        return
    for field in ("namespace", "name"):
        if not reference.get(field):
            yield required_cause(f"spec.service.{field}")
    if spec.get("insecureSkipTLSVerify") and spec.get("caBundle"):
        yield invalid_cause("spec.insecureSkipTLSVerify", True, "may not be true if caBundle is present")
