"""Columns of storage, leases, RBAC, admission, CRDs, priorities, endpoint slices, network policies and devices."""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.tables.core_columns import age_of, event_cells, name_of
from tessera_lab.apiserver.tables.workload_columns import selector

Part = Mapping[str, Any]
_UNSET = "<unset>"
_SHORT_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_ATTRIBUTES = "VolumeAttributesClass"
_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
_DEVICES = "resource.k8s.io"


def _lease(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), (obj.get("spec") or {}).get("holderIdentity") or "", age_of(obj, now)]


def _creation(obj: Part, now: float) -> Sequence[Any]:
    del now
    return [name_of(obj), obj["metadata"].get("creationTimestamp") or "<unknown>"]


def _binding(obj: Part, now: float) -> Sequence[Any]:
    role, subjects = obj.get("roleRef") or {}, obj.get("subjects") or ()

    def list_subjects(kind: str) -> str:
        found = [each for each in subjects if each.get("kind") == kind]
        if kind == "ServiceAccount":
            return ", ".join(f"{each.get('namespace', '')}/{each.get('name')}" for each in found)
        return ", ".join(str(each.get("name")) for each in found)

    shown = f"{role.get('kind')}/{role.get('name')}"
    return [
        name_of(obj),
        shown,
        age_of(obj, now),
        list_subjects("User"),
        list_subjects("Group"),
        list_subjects("ServiceAccount"),
    ]


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


def _flow_schema(obj: Part, now: float) -> Sequence[Any]:
    spec = obj.get("spec") or {}
    distinguisher = (spec.get("distinguisherMethod") or {}).get("type") or "<none>"
    level = (spec.get("priorityLevelConfiguration") or {}).get("name") or ""
    # "?" until a controller has said whether the level exists; here none does.
    return [name_of(obj), level, spec.get("matchingPrecedence") or 0, distinguisher, age_of(obj, now), "?"]


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


def _modes(modes: Sequence[str] | None) -> str:
    return ",".join(short for mode, short in _SHORT_MODES.items() if mode in (modes or ()))


def _claim(obj: Part, now: float) -> Sequence[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    bound = bool(spec.get("volumeName"))
    return [
        name_of(obj),
        "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", "") if bound else "",
        _modes(status.get("accessModes")) if bound else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or _UNSET,
        age_of(obj, now),
        spec.get("volumeMode") or _UNSET,
    ]


def _volume(obj: Part, now: float) -> Sequence[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    claim = spec.get("claimRef")
    return [
        name_of(obj),
        (spec.get("capacity") or {}).get("storage", ""),
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or _UNSET,
        status.get("reason", ""),
        age_of(obj, now),
        spec.get("volumeMode") or _UNSET,
    ]


def _class(obj: Part, now: float) -> Sequence[Any]:
    default = (obj["metadata"].get("annotations") or {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    return [
        name_of(obj) + (" (default)" if default else ""),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", ""),
        obj.get("volumeBindingMode", ""),
        "true" if obj.get("allowVolumeExpansion") else "false",
        age_of(obj, now),
    ]


def _csi_node(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), len((obj.get("spec") or {}).get("drivers") or ()), age_of(obj, now)]


def _api_service(obj: Part, now: float) -> Sequence[Any]:
    service, status = (obj.get("spec") or {}).get("service"), obj.get("status") or {}
    available = next((each for each in status.get("conditions") or () if each["type"] == "Available"), None)
    state = "Unknown" if available is None else available["status"]
    reason = f" ({available['reason']})" if available is not None and state != "True" else ""
    shown = "Local" if service is None else f"{service['namespace']}/{service['name']}"
    return [name_of(obj), shown, f"{state}{reason}", age_of(obj, now)]


_BINDING = (("Name", "Role", "Age", "+Users", "+Groups", "+ServiceAccounts"), _binding)
_WEBHOOKS = (("Name", "Webhooks:integer", "Age"), _webhooks)
_NAME_CREATED = (("Name", "Created At"), _creation)


def _named(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), age_of(obj, now)]


def _device_claim(obj: Part, now: float) -> Sequence[Any]:
    status, deleted = obj.get("status") or {}, bool(obj["metadata"].get("deletionTimestamp"))
    allocated = status.get("allocation") is not None
    states = ["deleted"] if deleted else [] if allocated else ["pending"]
    states += ["allocated"] if allocated else []
    states += ["reserved"] if allocated and status.get("reservedFor") else []
    return [name_of(obj), ",".join(states), age_of(obj, now)]


def _device_slice(obj: Part, now: float) -> Sequence[Any]:
    spec = obj.get("spec") or {}
    pool = (spec.get("pool") or {}).get("name", "")
    return [name_of(obj), spec.get("nodeName") or "<unset>", spec.get("driver", ""), pool, age_of(obj, now)]


COLUMNS: Mapping[tuple[str, str], tuple[tuple[str, ...], Any]] = {
    ("", "PersistentVolumeClaim"): (
        (
            "Name",
            "Status",
            "Volume",
            "Capacity",
            "Access Modes",
            "StorageClass",
            _ATTRIBUTES,
            "Age",
            "+VolumeMode",
        ),
        _claim,
    ),
    ("", "PersistentVolume"): (
        (
            "Name",
            "Capacity",
            "Access Modes",
            "Reclaim Policy",
            "Status",
            "Claim",
            "StorageClass",
            _ATTRIBUTES,
            "Reason",
            "Age",
            "+VolumeMode",
        ),
        _volume,
    ),
    ("storage.k8s.io", "StorageClass"): (
        ("Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age"),
        _class,
    ),
    ("storage.k8s.io", "CSINode"): (("Name", "Drivers:integer", "Age"), _csi_node),
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
    ("apiregistration.k8s.io", "APIService"): (("Name", "Service", "Available", "Age"), _api_service),
    ("scheduling.k8s.io", "PriorityClass"): (
        ("Name", "Value:integer", "Global-Default:boolean", "Age", "PreemptionPolicy"),
        _priority,
    ),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"): (
        ("Name", "PriorityLevel", "MatchingPrecedence:integer", "DistinguisherMethod", "Age", "MissingPL"),
        _flow_schema,
    ),
    ("discovery.k8s.io", "EndpointSlice"): (("Name", "AddressType", "Ports", "Endpoints", "Age"), _slice),
    ("networking.k8s.io", "NetworkPolicy"): (("Name", "Pod-Selector", "Age"), _network_policy),
    ("node.k8s.io", "RuntimeClass"): (("Name", "Handler", "Age"), _runtime),
    ("events.k8s.io", "Event"): (
        ("Last Seen", "Type", "Reason", "Object", "+Subobject", "+Source", "Message", "+First Seen", "+Count", "+Name"),
        _new_event,
    ),
    (_DEVICES, "DeviceClass"): (("Name", "Age"), _named),
    (_DEVICES, "ResourceClaim"): (("Name", "State", "Age"), _device_claim),
    (_DEVICES, "ResourceClaimTemplate"): (("Name", "Age"), _named),
    (_DEVICES, "ResourceSlice"): (("Name", "Node", "Driver", "Pool", "Age"), _device_slice),
}
