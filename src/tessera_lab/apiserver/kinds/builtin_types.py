"""The built-in resource types: names, verbs, subresources. The server answers 404 for any other built-in type.

Source: discovery documents of Kubernetes 1.32; of 1.36 for ``resource.k8s.io``, which is served at ``v1`` alone.
"""

import msgspec

from tessera_lab.apiserver.interfaces import GroupResource
from tessera_lab.apiserver.kinds.versions import DEFAULT, disabled_fields, has_claims, has_taint_rules
from tessera_lab.apiserver.resource_types import ALL_VERBS, ResourceType, ScalePaths, Subresource

_GET_PATCH_UPDATE = ("get", "patch", "update")
_STATUS = Subresource(name="status", verbs=_GET_PATCH_UPDATE)
_SCALE = Subresource(name="scale", verbs=_GET_PATCH_UPDATE, kind="Scale", group="autoscaling", version="v1")


def _singular(kind: str) -> str:
    return kind.lower()


def _type(
    group: str,
    version: str,
    plural: str,
    kind: str,
    *,
    namespaced: bool = True,
    short: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    subresources: tuple[Subresource, ...] = (),
    fields: tuple[str, ...] = (),
    generation: bool = False,
    verbs: tuple[str, ...] = ALL_VERBS,
    storage: GroupResource | None = None,
) -> ResourceType:
    return ResourceType(
        group=group,
        version=version,
        plural=plural,
        singular=_singular(kind),
        kind=kind,
        list_kind=kind + "List",
        namespaced=namespaced,
        storage=storage or GroupResource(group, plural),
        short_names=short,
        categories=categories,
        verbs=verbs,
        subresources={each.name: each for each in subresources},
        scale=ScalePaths() if _SCALE in subresources else None,
        field_labels=fields,
        generation=generation,
    )


_POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
_EVENT_FIELDS = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)
_NO_COLLECTION = tuple(verb for verb in ALL_VERBS if verb != "deletecollection")
_PROXY = ("get", "create", "update", "patch", "delete")
_POD_SUBRESOURCES = (
    Subresource(name="binding", verbs=("create",), kind="Binding", version="v1"),
    Subresource(name="ephemeralcontainers", verbs=_GET_PATCH_UPDATE),
    Subresource(name="eviction", verbs=("create",), kind="Eviction", group="policy", version="v1"),
    Subresource(name="log", verbs=("get",)),
    Subresource(name="proxy", verbs=_PROXY, kind="PodProxyOptions", version="v1"),
    Subresource(name="exec", verbs=("create", "get"), kind="PodExecOptions", version="v1"),
    Subresource(name="portforward", verbs=("create", "get"), kind="PodPortForwardOptions", version="v1"),
    _STATUS,
)
_TOKEN = Subresource(name="token", verbs=("create",), kind="TokenRequest", group="authentication.k8s.io", version="v1")
_FINALIZE = Subresource(name="finalize", verbs=("update",))

_CORE = (
    _type("", "v1", "configmaps", "ConfigMap", short=("cm",)),
    _type("", "v1", "endpoints", "Endpoints", short=("ep",)),
    _type("", "v1", "events", "Event", short=("ev",), fields=_EVENT_FIELDS),
    _type(
        "",
        "v1",
        "namespaces",
        "Namespace",
        namespaced=False,
        short=("ns",),
        subresources=(_FINALIZE, _STATUS),
        fields=("status.phase",),
        verbs=_NO_COLLECTION,
    ),
    _type(
        "",
        "v1",
        "nodes",
        "Node",
        namespaced=False,
        short=("no",),
        subresources=(_STATUS,),
        fields=("spec.unschedulable",),
    ),
    _type(
        "",
        "v1",
        "pods",
        "Pod",
        short=("po",),
        categories=("all",),
        subresources=_POD_SUBRESOURCES,
        fields=_POD_FIELDS,
    ),
    _type(
        "",
        "v1",
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        short=("pvc",),
        subresources=(_STATUS,),
        fields=("spec.volumeName", "status.phase"),
    ),
    _type("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False, short=("pv",), subresources=(_STATUS,)),
    _type("", "v1", "limitranges", "LimitRange", short=("limits",)),
    _type("", "v1", "podtemplates", "PodTemplate"),
    _type("", "v1", "resourcequotas", "ResourceQuota", short=("quota",), subresources=(_STATUS,)),
    _type("", "v1", "secrets", "Secret", fields=("type",)),
    _type("", "v1", "serviceaccounts", "ServiceAccount", short=("sa",), subresources=(_TOKEN,)),
    _type(
        "",
        "v1",
        "services",
        "Service",
        short=("svc",),
        categories=("all",),
        subresources=(Subresource(name="proxy", verbs=_PROXY, kind="ServiceProxyOptions", version="v1"), _STATUS),
        fields=("spec.clusterIP", "spec.type"),
    ),
)
_APPS = (
    _type("apps", "v1", "controllerrevisions", "ControllerRevision"),
    _type(
        "apps",
        "v1",
        "daemonsets",
        "DaemonSet",
        short=("ds",),
        categories=("all",),
        subresources=(_STATUS,),
        generation=True,
    ),
    _type(
        "apps",
        "v1",
        "deployments",
        "Deployment",
        short=("deploy",),
        categories=("all",),
        subresources=(_SCALE, _STATUS),
        generation=True,
    ),
    _type(
        "apps",
        "v1",
        "replicasets",
        "ReplicaSet",
        short=("rs",),
        categories=("all",),
        subresources=(_SCALE, _STATUS),
        generation=True,
        fields=("status.replicas",),
    ),
    _type(
        "apps",
        "v1",
        "statefulsets",
        "StatefulSet",
        short=("sts",),
        categories=("all",),
        subresources=(_SCALE, _STATUS),
        generation=True,
    ),
)
_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_DRA = "resource.k8s.io"
_REVIEW = ("create",)
_TAINT_RULES = _type(
    _DRA, "v1", "devicetaintrules", "DeviceTaintRule", namespaced=False, subresources=(_STATUS,), generation=True
)
_OTHERS = (
    _type(
        "batch",
        "v1",
        "jobs",
        "Job",
        categories=("all",),
        subresources=(_STATUS,),
        generation=True,
        fields=("status.successful",),
    ),
    _type(
        "batch",
        "v1",
        "cronjobs",
        "CronJob",
        short=("cj",),
        categories=("all",),
        subresources=(_STATUS,),
        generation=True,
    ),
    *(
        _type(
            "autoscaling",
            version,
            "horizontalpodautoscalers",
            "HorizontalPodAutoscaler",
            short=("hpa",),
            categories=("all",),
            subresources=(_STATUS,),
        )
        for version in ("v2", "v1")
    ),
    _type("coordination.k8s.io", "v1", "leases", "Lease"),
    _type("events.k8s.io", "v1", "events", "Event", short=("ev",), storage=GroupResource("", "events")),
    _type(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    _type(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
    _type(_RBAC, "v1", "rolebindings", "RoleBinding"),
    _type(_RBAC, "v1", "roles", "Role"),
    _type(
        _ADMISSION,
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        namespaced=False,
        categories=("api-extensions",),
        generation=True,
    ),
    _type(
        _ADMISSION,
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        namespaced=False,
        categories=("api-extensions",),
        generation=True,
    ),
    _type(
        _ADMISSION,
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        namespaced=False,
        categories=("api-extensions",),
        generation=True,
    ),
    _type(
        _ADMISSION,
        "v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        namespaced=False,
        categories=("api-extensions",),
        subresources=(_STATUS,),
        generation=True,
    ),
    _type(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        namespaced=False,
        short=("crd", "crds"),
        categories=("api-extensions",),
        subresources=(_STATUS,),
        generation=True,
    ),
    _type(
        "apiregistration.k8s.io",
        "v1",
        "apiservices",
        "APIService",
        namespaced=False,
        categories=("api-extensions",),
        subresources=(_STATUS,),
    ),
    _type(
        "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, short=("pc",), generation=True
    ),
    _type(
        "flowcontrol.apiserver.k8s.io",
        "v1",
        "flowschemas",
        "FlowSchema",
        namespaced=False,
        subresources=(_STATUS,),
        generation=True,
    ),
    _type("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False),
    _type("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False, short=("sc",)),
    _type("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", short=("netpol",), generation=True),
    _type(_DRA, "v1", "deviceclasses", "DeviceClass", namespaced=False, generation=True),
    _type(_DRA, "v1", "resourceclaims", "ResourceClaim", subresources=(_STATUS,)),
    _type(_DRA, "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    _type(
        _DRA,
        "v1",
        "resourceslices",
        "ResourceSlice",
        namespaced=False,
        fields=("spec.nodeName", "spec.driver"),
        generation=True,
    ),
    _TAINT_RULES,
    _type("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False),
    _type("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", generation=True),
    _type(
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        short=("pdb",),
        subresources=(_STATUS,),
        generation=True,
    ),
    _type(
        "authorization.k8s.io",
        "v1",
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        namespaced=False,
        verbs=_REVIEW,
    ),
    _type(
        "authorization.k8s.io",
        "v1",
        "selfsubjectrulesreviews",
        "SelfSubjectRulesReview",
        namespaced=False,
        verbs=_REVIEW,
    ),
    _type("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False, verbs=_REVIEW),
    _type("authorization.k8s.io", "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", verbs=_REVIEW),
    _type("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False, verbs=_REVIEW),
    _type("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False, verbs=_REVIEW),
)


def builtin_types(version: str = DEFAULT) -> tuple[ResourceType, ...]:
    """Every built-in type of a minor version, without schemas and table columns; the server's wiring adds those."""
    return (*_CORE, *_APPS, *(_shape(each, version) for each in _OTHERS if _is_served(each, version)))


def _is_served(each: ResourceType, version: str) -> bool:
    if each is _TAINT_RULES:
        return has_taint_rules(version)
    return each.group != _DRA or has_claims(version)


def _shape(each: ResourceType, version: str) -> ResourceType:
    if each.group != _DRA:
        return each
    return msgspec.structs.replace(each, shape=version, disabled=disabled_fields(each.plural, version))
