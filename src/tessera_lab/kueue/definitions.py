"""CustomResourceDefinitions of Kueue's kinds, from the public field names of ``kueue.x-k8s.io`` (Kueue 0.13 to 0.19).

Written as tables of fields, so that a manifest with a field which Kueue does not have is refused by strict validation.
Rules that Kueue adds to its schemas (lengths, CEL) are left out, but for the few that a manifest of ours could break.
"""

import copy
from typing import Any

from tessera.kueue.names import GROUP

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_INT: Json = {"type": "integer"}
_BOOL: Json = {"type": "boolean"}
_TIME: Json = {"type": "string", "format": "date-time"}
_QUANTITY: Json = {"x-kubernetes-int-or-string": True}
_ANY: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEXTS: Json = {"type": "object", "additionalProperties": _TEXT}
_AMOUNTS: Json = {"type": "object", "additionalProperties": _QUANTITY}
_CONDITIONS: Json = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            **dict.fromkeys(("type", "status", "reason", "message"), _TEXT),
            "lastTransitionTime": _TIME,
            "observedGeneration": _INT,
        },
    },
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}


def fields(required: str = "", /, **properties: Any) -> Json:
    """An object's schema; ``required`` names fields with blanks between them."""
    made: Json = {"type": "object", "properties": properties}
    return {**made, "required": required.split()} if required else made


def several(item: Json, key: str = "", most: int = 0) -> Json:
    """A list's schema; with a key, an associative one."""
    made: Json = {"type": "array", "items": item}
    if key:
        made |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return {**made, "maxItems": most} if most else made


_USAGE = several(fields("name", name=_TEXT, resources=several(fields(name=_TEXT, total=_QUANTITY, borrowed=_QUANTITY))))
_QUOTA = fields(
    "name nominalQuota", name=_TEXT, nominalQuota=_QUANTITY, borrowingLimit=_QUANTITY, lendingLimit=_QUANTITY
)
_GROUP = fields(
    "coveredResources flavors",
    coveredResources=several(_TEXT, most=64),
    flavors=several(fields("name resources", name=_TEXT, resources=several(_QUOTA, "name", 64)), "name", 64),
)
_CHECKS = fields(admissionChecks=several(fields("name", name=_TEXT, onFlavors=several(_TEXT)), "name"))
_SELECTOR = fields(
    matchLabels=_TEXTS,
    matchExpressions=several(fields("key operator", key=_TEXT, operator=_TEXT, values=several(_TEXT))),
)
_CLUSTER_QUEUE = {
    "resourceGroups": several(_GROUP, most=16),
    "queueingStrategy": {"type": "string", "enum": ["StrictFIFO", "BestEffortFIFO"], "default": "BestEffortFIFO"},
    "namespaceSelector": _SELECTOR,
    "flavorFungibility": fields(whenCanBorrow=_TEXT, whenCanPreempt=_TEXT, preference=_TEXT),
    "preemption": fields(
        reclaimWithinCohort=_TEXT,
        borrowWithinCohort=fields(policy=_TEXT, maxPriorityThreshold=_INT),
        withinClusterQueue=_TEXT,
    ),
    "admissionChecksStrategy": _CHECKS,
    "stopPolicy": {"type": "string", "enum": ["None", "Hold", "HoldAndDrain"], "default": "None"},
    "fairSharing": fields(weight=_QUANTITY),
    "admissionScope": fields(admissionMode=_TEXT),
}
_QUEUE_STATUS = fields(
    conditions=_CONDITIONS,
    flavorsReservation=_USAGE,
    flavorsUsage=_USAGE,
    pendingWorkloads=_INT,
    reservingWorkloads=_INT,
    admittedWorkloads=_INT,
    fairSharing=_ANY,
)
_POD_SET = fields(
    "count template",
    name={"type": "string", "default": "main"},
    template=_ANY,
    count=_INT,
    minCount=_INT,
    topologyRequest=fields(required=_TEXT, preferred=_TEXT, unconstrained=_BOOL),
)
_ASSIGNMENT = fields("name", name=_TEXT, flavors=_TEXTS, resourceUsage=_AMOUNTS, count=_INT, topologyAssignment=_ANY)
_CHECK_STATE = fields(
    "name state lastTransitionTime message",
    name=_TEXT,
    state={"type": "string", "enum": ["Pending", "Ready", "Retry", "Rejected"]},
    lastTransitionTime=_TIME,
    message={"type": "string", "maxLength": 32768},
    requeueAfterSeconds=_INT,
    retryCount=_INT,
    podSetUpdates=several(
        fields("name", name=_TEXT, labels=_TEXTS, annotations=_TEXTS, nodeSelector=_TEXTS, tolerations=several(_ANY)),
        "name",
    ),
)
_WORKLOAD = {
    "podSets": several(_POD_SET, "name", 18),
    "queueName": _TEXT,
    "priority": _INT,
    "active": {"type": "boolean", "default": True},
    "maximumExecutionTimeSeconds": _INT,
}
_WORKLOAD_STATUS = fields(
    conditions=_CONDITIONS,
    admission=fields(
        "clusterQueue podSetAssignments", clusterQueue=_TEXT, podSetAssignments=several(_ASSIGNMENT, "name")
    ),
    requeueState=fields(count=_INT, requeueAt=_TIME),
    reclaimablePods=several(fields("name count", name=_TEXT, count=_INT), "name"),
    admissionChecks=several(_CHECK_STATE, "name"),
    resourceRequests=several(fields("name", name=_TEXT, resources=_AMOUNTS), "name"),
    schedulingStats=_ANY,
    unhealthyNodes=several(fields("name", name=_TEXT)),
)
_FLAVOR = fields(nodeLabels=_TEXTS, nodeTaints=several(_ANY), tolerations=several(_ANY), topologyName=_TEXT)
_LEVELS = several(fields("nodeLabel", nodeLabel={"type": "string", "minLength": 1, "maxLength": 316}), "nodeLabel", 16)
_TOPOLOGY = fields("levels", levels={**_LEVELS, "minItems": 1})
_LOCAL_QUEUE = fields(clusterQueue=_TEXT, stopPolicy=_TEXT, fairSharing=fields(weight=_QUANTITY))
_PARAMETERS = fields("apiGroup kind name", apiGroup=_TEXT, kind=_TEXT, name=_TEXT)

#: Of each kind: plural, namespaced, and by version the schemas of spec and status.
_KINDS: dict[str, tuple[str, bool, dict[str, tuple[Json, Json]]]] = {
    "Workload": (
        "workloads",
        True,
        {
            "v1beta1": (
                fields("podSets", **_WORKLOAD, priorityClassName=_TEXT, priorityClassSource=_TEXT),
                _WORKLOAD_STATUS,
            ),
            "v1beta2": (
                fields("podSets", **_WORKLOAD, priorityClassRef=fields(group=_TEXT, kind=_TEXT, name=_TEXT)),
                _WORKLOAD_STATUS,
            ),
        },
    ),
    "ClusterQueue": (
        "clusterqueues",
        False,
        {
            "v1beta1": (fields(**_CLUSTER_QUEUE, cohort=_TEXT, admissionChecks=several(_TEXT)), _QUEUE_STATUS),
            "v1beta2": (fields(**_CLUSTER_QUEUE, cohortName=_TEXT, concurrentAdmissionPolicy=_ANY), _QUEUE_STATUS),
        },
    ),
    "LocalQueue": (
        "localqueues",
        True,
        {
            "v1beta1": (_LOCAL_QUEUE, fields(**_QUEUE_STATUS["properties"], flavors=several(_ANY), flavorUsage=_USAGE)),
            "v1beta2": (_LOCAL_QUEUE, _QUEUE_STATUS),
        },
    ),
    "ResourceFlavor": ("resourceflavors", False, {"v1beta1": (_FLAVOR, {}), "v1beta2": (_FLAVOR, {})}),
    "Topology": ("topologies", False, {"v1beta1": (_TOPOLOGY, {}), "v1beta2": (_TOPOLOGY, {})}),
    "AdmissionCheck": (
        "admissionchecks",
        False,
        {
            "v1beta1": (
                fields("controllerName", controllerName=_TEXT, retryDelayMinutes=_INT, parameters=_PARAMETERS),
                fields(conditions=_CONDITIONS),
            ),
            "v1beta2": (
                fields("controllerName", controllerName=_TEXT, parameters=_PARAMETERS),
                fields(conditions=_CONDITIONS),
            ),
        },
    ),
}


def make_definitions(*versions: str, delays: bool = True) -> list[Json]:
    """Returns the definitions with these versions served; the last one is stored.

    Args:
        versions: of Kueue's API.
        delays: False leaves out the fields of a check's delay, which Kueue 0.13 does not have.
    """
    made = copy.deepcopy([_definition(kind, *facts, versions) for kind, facts in _KINDS.items()])
    for each in made if not delays else ():
        for version in each["spec"]["versions"]:
            status = version["schema"]["openAPIV3Schema"]["properties"].get("status", {})
            states = status.get("properties", {}).get("admissionChecks", {})
            for field in ("requeueAfterSeconds", "retryCount"):
                states.get("items", {}).get("properties", {}).pop(field, None)
    return made


def _definition(
    kind: str, plural: str, namespaced: bool, schemas: dict[str, tuple[Json, Json]], versions: tuple[str, ...]
) -> Json:
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": names,
            "versions": [
                {**_version(name, *schemas[name], stored=name == versions[-1]), **_columns(kind)} for name in versions
            ],
        },
    }


def _version(name: str, spec: Json, status: Json, *, stored: bool) -> Json:
    whole = fields(
        apiVersion=_TEXT, kind=_TEXT, metadata={"type": "object"}, spec=spec, **({"status": status} if status else {})
    )
    made: Json = {"name": name, "served": True, "storage": stored, "schema": {"openAPIV3Schema": whole}}
    return {**made, "subresources": {"status": {}}} if status else made


#: The columns of ``kubectl get workloads``: name, path and type.
_WORKLOAD_COLUMNS = (
    ("Queue", ".spec.queueName", "string"),
    ("Reserved in", ".status.admission.clusterQueue", "string"),
    ("Admitted", ".status.conditions[?(@.type=='Admitted')].status", "string"),
    ("Finished", ".status.conditions[?(@.type=='Finished')].status", "string"),
    ("Age", ".metadata.creationTimestamp", "date"),
)


def _columns(kind: str) -> Json:
    if kind != "Workload":
        return {}
    columns = [{"name": name, "jsonPath": path, "type": type_} for name, path, type_ in _WORKLOAD_COLUMNS]
    return {"additionalPrinterColumns": columns}
