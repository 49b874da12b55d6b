"""Packs the schemas of the built-in kinds that the lab's API server serves.

    python scripts/builtin_schemas.py > src/tessera_lab/apiserver/schemas/builtin.json

Source: the OpenAPI definitions of Kubernetes 1.32 as the development dependency kubernetes-validate carries them; those
of 1.36 for ``resource.k8s.io/v1``, which 1.32 does not have, for the field of a pod's status that came with it, and for
the tolerances of ``autoscaling/v2``; those of 1.37 for DeviceTaintRule, which came into ``v1`` then.
Kept: types, formats, properties, required, references and the ``x-kubernetes-*`` merge rules. Dropped: descriptions,
and ``null`` beside every type (for a built-in kind null is the same as absent). Added: what the published definitions
do not say but the server knows, see ENUMS and DEFAULTS.
"""

import json
import sys
from importlib.resources import files

VERSION, DRA_VERSION, RULES_VERSION = "v1.32.0-local", "v1.36.0-local", "v1.37.0-local"
PREFIX = "#/$defs/"

CORE, META = "io.k8s.api.core.v1.", "io.k8s.apimachinery.pkg.apis.meta.v1."

#: Definitions that are served, with the group and version they belong to.
KINDS = {
    ("", "v1"): (
        CORE,
        (
            "Binding ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod "
            "PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount"
        ),
    ),
    ("apps", "v1"): (
        "io.k8s.api.apps.v1.",
        "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    ),
    ("batch", "v1"): ("io.k8s.api.batch.v1.", "CronJob Job"),
    ("coordination.k8s.io", "v1"): ("io.k8s.api.coordination.v1.", "Lease"),
    ("discovery.k8s.io", "v1"): ("io.k8s.api.discovery.v1.", "EndpointSlice"),
    ("events.k8s.io", "v1"): ("io.k8s.api.events.v1.", "Event"),
    ("flowcontrol.apiserver.k8s.io", "v1"): ("io.k8s.api.flowcontrol.v1.", "FlowSchema"),
    ("networking.k8s.io", "v1"): ("io.k8s.api.networking.v1.", "NetworkPolicy"),
    ("node.k8s.io", "v1"): ("io.k8s.api.node.v1.", "RuntimeClass"),
    ("resource.k8s.io", "v1"): (
        "io.k8s.api.resource.v1.",
        "DeviceClass DeviceTaintRule ResourceClaim ResourceClaimTemplate ResourceSlice",
    ),
    ("policy", "v1"): ("io.k8s.api.policy.v1.", "Eviction PodDisruptionBudget"),
    ("scheduling.k8s.io", "v1"): ("io.k8s.api.scheduling.v1.", "PriorityClass"),
    ("storage.k8s.io", "v1"): ("io.k8s.api.storage.v1.", "CSINode StorageClass"),
    ("autoscaling", "v1"): ("io.k8s.api.autoscaling.v1.", "HorizontalPodAutoscaler Scale"),
    ("autoscaling", "v2"): ("io.k8s.api.autoscaling.v2.", "HorizontalPodAutoscaler"),
    ("rbac.authorization.k8s.io", "v1"): (
        "io.k8s.api.rbac.v1.",
        "ClusterRole ClusterRoleBinding Role RoleBinding",
    ),
    ("admissionregistration.k8s.io", "v1"): (
        "io.k8s.api.admissionregistration.v1.",
        (
            "MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding "
            "ValidatingWebhookConfiguration"
        ),
    ),
    ("apiextensions.k8s.io", "v1"): (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.",
        "CustomResourceDefinition",
    ),
    ("apiregistration.k8s.io", "v1"): ("io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.", "APIService"),
    ("authentication.k8s.io", "v1"): (
        "io.k8s.api.authentication.v1.",
        "SelfSubjectReview TokenRequest TokenReview",
    ),
    ("authorization.k8s.io", "v1"): (
        "io.k8s.api.authorization.v1.",
        "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
    ),
    ("meta.k8s.io", "v1"): (META, "DeleteOptions"),
}

#: Values that kube-apiserver's validation accepts (pkg/apis/*/validation), by definition and field.
ENUMS = {
    CORE + "PodSpec": {
        "restartPolicy": ["Always", "OnFailure", "Never"],
        "dnsPolicy": ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        "preemptionPolicy": ["PreemptLowerPriority", "Never"],
    },
    CORE + "Container": {
        "imagePullPolicy": ["Always", "IfNotPresent", "Never"],
        "terminationMessagePolicy": ["File", "FallbackToLogsOnError"],
    },
    CORE + "ContainerPort": {"protocol": ["SCTP", "TCP", "UDP"]},
    CORE + "ServicePort": {"protocol": ["SCTP", "TCP", "UDP"]},
    CORE + "ServiceSpec": {
        "type": ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
        "sessionAffinity": ["ClientIP", "None"],
    },
    CORE + "PersistentVolumeClaimSpec": {"volumeMode": ["Block", "Filesystem"]},
    CORE + "PersistentVolumeSpec": {
        "persistentVolumeReclaimPolicy": ["Delete", "Recycle", "Retain"],
        "volumeMode": ["Block", "Filesystem"],
    },
    "io.k8s.api.networking.v1.NetworkPolicyPort": {"protocol": ["TCP", "UDP", "SCTP"]},
    "io.k8s.api.storage.v1.StorageClass": {
        "reclaimPolicy": ["Delete", "Retain"],
        "volumeBindingMode": ["Immediate", "WaitForFirstConsumer"],
    },
    CORE + "Taint": {"effect": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
    CORE + "Toleration": {
        "operator": ["Equal", "Exists"],
        "effect": ["NoSchedule", "PreferNoSchedule", "NoExecute"],
    },
    CORE + "TopologySpreadConstraint": {"whenUnsatisfiable": ["DoNotSchedule", "ScheduleAnyway"]},
    "io.k8s.api.apps.v1.DeploymentStrategy": {"type": ["Recreate", "RollingUpdate"]},
    "io.k8s.api.apps.v1.DaemonSetUpdateStrategy": {"type": ["RollingUpdate", "OnDelete"]},
    "io.k8s.api.apps.v1.StatefulSetSpec": {"podManagementPolicy": ["OrderedReady", "Parallel"]},
    "io.k8s.api.batch.v1.JobSpec": {
        "completionMode": ["NonIndexed", "Indexed"],
        "podReplacementPolicy": ["Failed", "TerminatingOrFailed"],
    },
    "io.k8s.api.admissionregistration.v1.MutatingWebhook": {
        "failurePolicy": ["Fail", "Ignore"],
        "matchPolicy": ["Equivalent", "Exact"],
        "reinvocationPolicy": ["IfNeeded", "Never"],
        "sideEffects": ["None", "NoneOnDryRun"],
    },
    "io.k8s.api.admissionregistration.v1.ValidatingWebhook": {
        "failurePolicy": ["Fail", "Ignore"],
        "matchPolicy": ["Equivalent", "Exact"],
        "sideEffects": ["None", "NoneOnDryRun"],
    },
    "io.k8s.api.admissionregistration.v1.MatchResources": {"matchPolicy": ["Equivalent", "Exact"]},
    "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec": {"failurePolicy": ["Fail", "Ignore"]},
    "io.k8s.api.admissionregistration.v1.Validation": {
        "reason": ["Forbidden", "Invalid", "RequestEntityTooLarge"],
    },
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionSpec": {
        "scope": ["Cluster", "Namespaced"],
    },
}

#: Defaults that depend on nothing else (pkg/apis/*/v1/defaults.go), by definition and field. The protocol of ports is a
#: key of an associative list, so server-side apply needs its default too.
DEFAULTS = {
    CORE + "ContainerPort": {"protocol": "TCP"},
    CORE + "ServicePort": {"protocol": "TCP"},
    CORE + "Container": {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"},
    CORE + "PodSpec": {
        "dnsPolicy": "ClusterFirst",
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
    },
    CORE + "ServiceSpec": {"sessionAffinity": "None", "type": "ClusterIP"},
    CORE + "PersistentVolumeClaimSpec": {"volumeMode": "Filesystem"},
    CORE + "PersistentVolumeSpec": {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"},
    "io.k8s.api.networking.v1.NetworkPolicyPort": {"protocol": "TCP"},
    "io.k8s.api.storage.v1.StorageClass": {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"},
    CORE + "Secret": {"type": "Opaque"},
    "io.k8s.api.apps.v1.DeploymentSpec": {
        "progressDeadlineSeconds": 600,
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "strategy": {},
    },
    "io.k8s.api.apps.v1.DeploymentStrategy": {"type": "RollingUpdate"},
    "io.k8s.api.apps.v1.ReplicaSetSpec": {"replicas": 1},
    "io.k8s.api.apps.v1.StatefulSetSpec": {
        "podManagementPolicy": "OrderedReady",
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "updateStrategy": {},
    },
    "io.k8s.api.apps.v1.DaemonSetSpec": {"revisionHistoryLimit": 10, "updateStrategy": {}},
    "io.k8s.api.apps.v1.DaemonSetUpdateStrategy": {"type": "RollingUpdate"},
    "io.k8s.api.batch.v1.JobSpec": {"completionMode": "NonIndexed", "suspend": False},
    "io.k8s.api.scheduling.v1.PriorityClass": {"preemptionPolicy": "PreemptLowerPriority"},
    "io.k8s.api.admissionregistration.v1.MutatingWebhook": {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "reinvocationPolicy": "Never",
        "timeoutSeconds": 10,
    },
    "io.k8s.api.admissionregistration.v1.ValidatingWebhook": {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "timeoutSeconds": 10,
    },
    "io.k8s.api.admissionregistration.v1.MatchResources": {
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
    },
    "io.k8s.api.admissionregistration.v1.NamedRuleWithOperations": {"scope": "*"},
    "io.k8s.api.admissionregistration.v1.RuleWithOperations": {"scope": "*"},
    "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec": {"failurePolicy": "Fail"},
    "io.k8s.api.admissionregistration.v1.ServiceReference": {"port": 443},
}

KEPT = ("format", "required")

#: Definitions of the newer version, and the field of a pod's status that uses one of them.
NEWER = (
    "io.k8s.api.resource.v1.",
    "io.k8s.api.autoscaling.v2.",
    CORE + "PodExtendedResourceClaimStatus",
    CORE + "ContainerExtendedResourceRequest",
)
RULES = ("io.k8s.api.resource.v1.DeviceTaintRule", "io.k8s.api.resource.v1.DeviceTaintSelector")
CLAIM_STATUS = "extendedResourceClaimStatus"


def pack(schema: dict) -> dict:
    """One node of the source without what the server does not use."""
    if "$ref" in schema:
        kept = {"$ref": schema["$ref"].rpartition(PREFIX)[2]}
    else:
        kept = {key: schema[key] for key in KEPT if key in schema}
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else [k for k in kinds or [] if k != "null"]
        if kinds:
            kept["type"] = kinds[0]
        if "properties" in schema:
            kept["properties"] = {name: pack(child) for name, child in schema["properties"].items()}
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), dict):
                kept[key] = pack(schema[key])
    kept.update({key: value for key, value in schema.items() if key.startswith("x-kubernetes-")})
    kept.pop("x-kubernetes-group-version-kind", None)
    kept.pop("x-kubernetes-unions", None)
    return kept


def references(schema: dict) -> set[str]:
    """Names of the definitions that a packed node uses."""
    found = {schema["$ref"]} if "$ref" in schema else set()
    for child in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if child:
            found |= references(child)
    return found


def definitions_of(version: str) -> dict[str, dict]:
    """The definitions of one version, by name."""
    path = files("kubernetes_validate") / "kubernetes-json-schema" / version / "_definitions.json"
    return json.loads(path.read_text())["$defs"]


def main() -> None:
    """Writes the packed schemas to standard output."""
    source, newer = definitions_of(VERSION), definitions_of(DRA_VERSION)
    source |= {name: each for name, each in newer.items() if name.startswith(NEWER)}
    rules = definitions_of(RULES_VERSION)
    source |= {name: each for name, each in rules.items() if name.startswith(RULES)}
    status = CORE + "PodStatus"
    source[status]["properties"][CLAIM_STATUS] = newer[status]["properties"][CLAIM_STATUS]
    kinds = {
        f"{group}/{version}/{kind}": prefix + kind
        for (group, version), (prefix, names) in KINDS.items()
        for kind in names.split()
    }
    definitions: dict[str, dict] = {}
    waiting = sorted(kinds.values())
    while waiting:
        name = waiting.pop()
        if name in definitions:
            continue
        definitions[name] = pack(source[name])
        waiting += sorted(references(definitions[name]))
    definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = {"x-kubernetes-int-or-string": True}
    definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] = {"type": "string", "format": "quantity"}
    for table, key in ((ENUMS, "enum"), (DEFAULTS, "default")):
        for name, fields in table.items():
            for field, value in fields.items():
                definitions[name]["properties"][field][key] = value
    packed = {"kinds": dict(sorted(kinds.items())), "definitions": dict(sorted(definitions.items()))}
    sys.stdout.write(json.dumps(packed, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
