"""Columns of leases, RBAC, admission, CRDs, priority classes, endpoint slices and network policies; and a CRD's own."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.interfaces import Obj
from tessera_lab.apiserver.tables.ages import format_age
from tessera_lab.apiserver.tables.core_columns import age_of, event_cells, name_of
from tessera_lab.apiserver.tables.jsonpath import find_values, parse_path
from tessera_lab.apiserver.tables.workload_columns import selector

Part = Mapping[str, Any]


def _lease(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), (obj.get("spec") or {}).get("holderIdentity") or "", age_of(obj, now)]


def _created(obj: Part, now: float) -> Sequence[Any]:
    del now
    return [name_of(obj), obj["metadata"].get("creationTimestamp") or "<unknown>"]


def _binding(obj: Part, now: float) -> Sequence[Any]:
    role, subjects = obj.get("roleRef") or {}, obj.get("subjects") or ()

    def named(kind: str) -> str:
        found = [each for each in subjects if each.get("kind") == kind]
        if kind == "ServiceAccount":
            return ", ".join(f"{each.get('namespace', '')}/{each.get('name')}" for each in found)
        return ", ".join(str(each.get("name")) for each in found)

    shown = f"{role.get('kind')}/{role.get('name')}"
    return [name_of(obj), shown, age_of(obj, now), named("User"), named("Group"), named("ServiceAccount")]


def _webhooks(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), len(obj.get("webhooks") or ()), age_of(obj, now)]


def _policy(obj: Part, now: float) -> Sequence[Any]:
    spec = obj.get("spec") or {}
    return [name_of(obj), len(spec.get("validations") or ()), "<unset>", age_of(obj, now)]


def _policy_binding(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), (obj.get("spec") or {}).get("policyName", ""), "<unset>", age_of(obj, now)]


def _priority(obj: Part, now: float) -> Sequence[Any]:
    policy = obj.get("preemptionPolicy") or "PreemptLowerPriority"
    return [name_of(obj), obj.get("value", 0), bool(obj.get("globalDefault")), age_of(obj, now), policy]


def _slice(obj: Part, now: float) -> Sequence[Any]:
    ports = ",".join(str(each.get("port")) if each.get("port") is not None else "*" for each in obj.get("ports") or ())
    found = [address for each in obj.get("endpoints") or () for address in each.get("addresses") or ()]
    more = f" + {len(found) - 3} more..." if len(found) > 3 else ""
    where = ",".join(found[:3]) + more or "<unset>"
    return [name_of(obj), obj.get("addressType", ""), ports or "<unset>", where, age_of(obj, now)]


def _network_policy(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), selector((obj.get("spec") or {}).get("podSelector")), age_of(obj, now)]


def _runtime(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), obj.get("handler", ""), age_of(obj, now)]


def _new_event(obj: Part, now: float) -> Sequence[Any]:
    """Cells of an events.k8s.io Event, whose fields have other names."""
    old = {
        **obj,
        "involvedObject": obj.get("regarding"),
        "message": obj.get("note"),
        "source": obj.get("deprecatedSource"),
        "firstTimestamp": obj.get("deprecatedFirstTimestamp"),
        "lastTimestamp": obj.get("deprecatedLastTimestamp"),
        "count": obj.get("deprecatedCount"),
        "reportingComponent": obj.get("reportingController"),
    }
    return event_cells(old, now)


_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
_BINDING = (("Name", "Role", "Age", "+Users", "+Groups", "+ServiceAccounts"), _binding)
_WEBHOOKS = (("Name", "Webhooks:integer", "Age"), _webhooks)
_NAME_CREATED = (("Name", "Created At"), _created)

COLUMNS = {
    ("coordination.k8s.io", "Lease"): (("Name", "Holder", "Age"), _lease),
    (_RBAC, "Role"): _NAME_CREATED,
    (_RBAC, "ClusterRole"): _NAME_CREATED,
    (_RBAC, "RoleBinding"): _BINDING,
    (_RBAC, "ClusterRoleBinding"): _BINDING,
    (_ADMISSION, "MutatingWebhookConfiguration"): _WEBHOOKS,
    (_ADMISSION, "ValidatingWebhookConfiguration"): _WEBHOOKS,
    (_ADMISSION, "ValidatingAdmissionPolicy"): (("Name", "Validations:integer", "ParamKind", "Age"), _policy),
    (_ADMISSION, "ValidatingAdmissionPolicyBinding"): (("Name", "PolicyName", "ParamRef", "Age"), _policy_binding),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _NAME_CREATED,
    ("scheduling.k8s.io", "PriorityClass"): (
        ("Name", "Value:integer", "Global-Default:boolean", "Age", "PreemptionPolicy"),
        _priority,
    ),
    ("discovery.k8s.io", "EndpointSlice"): (("Name", "AddressType", "Ports", "Endpoints", "Age"), _slice),
    ("networking.k8s.io", "NetworkPolicy"): (("Name", "Pod-Selector", "Age"), _network_policy),
    ("node.k8s.io", "RuntimeClass"): (("Name", "Handler", "Age"), _runtime),
    ("events.k8s.io", "Event"): (
        ("Last Seen", "Type", "Reason", "Object", "+Subobject", "+Source", "Message", "+First Seen", "+Count", "+Name"),
        _new_event,
    ),
}

_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_NAME: Obj = {"name": "Name", "type": "string", "format": "name", "description": "Name of the object", "priority": 0}


class CustomColumns:
    """Implements :class:`tessera_lab.apiserver.interfaces.Columns` from a CRD's ``additionalPrinterColumns``.

    Args:
        columns: as in the CRD, with paths that :mod:`jsonpath` parses; an empty list means age only.
    """

    def __init__(self, columns: Sequence[Part]) -> None:
        self._columns = [(each, parse_path(each["jsonPath"])) for each in columns or [_AGE]]

    def definitions(self) -> Sequence[Obj]:
        """``Table.columnDefinitions``, the name first."""
        return [_NAME, *(_definition(each) for each, _ in self._columns)]

    def cells(self, obj: Part, now: float) -> Sequence[Any]:
        """Returns one row; a cell whose path has no value is empty."""
        found = ((each["type"], find_values(steps, obj)) for each, steps in self._columns)
        return [name_of(obj), *(_cell(kind, values[0], now) if values else None for kind, values in found)]


def _definition(column: Part) -> Obj:
    default = f"Custom resource definition column (in JSONPath format): {column['jsonPath']}"
    return {
        "name": column["name"],
        "type": column["type"],
        "format": column.get("format", ""),
        "description": column.get("description") or default,
        "priority": column.get("priority", 0),
    }


def _cell(kind: str, value: Any, now: float) -> Any:
    """Converts a value to its column's type; None if it does not fit."""
    if kind == "date":
        return format_age(value, now) if isinstance(value, str) else None
    if kind == "string":
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if kind == "integer" else value
