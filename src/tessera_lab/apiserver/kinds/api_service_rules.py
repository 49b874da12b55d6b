"""APIServices: defaults and rules. Pure; ``kube-aggregator/pkg/apis/apiregistration/{v1,validation}``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.field_errors import invalid_cause, required_cause
from tessera_lab.apiserver.interfaces import Obj, StatusCause

Read = Mapping[str, Any]

_USUAL_PORT = 443
_GROUP_PRIORITY, _VERSION_PRIORITY = 20_000, 1_000


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
