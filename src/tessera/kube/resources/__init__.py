"""The kinds of objects that Tessera reads or writes, and where they live on the server.

The place to import kinds and their :class:`Resource` constants from. Structs are partial; see
:mod:`tessera.kube.resources.meta` for what follows from that.
"""

from typing import Any

from tessera.kube.resources.cluster import (
    ConditionsStatus,
    ConfigMap,
    CoreEvent,
    CronJob,
    CsiNode,
    CustomResourceDefinition,
    DaemonSet,
    Deployment,
    Job,
    Lease,
    LeaseSpec,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    PodTemplateSpec,
    ProvisioningRequest,
    ReplicaSet,
    ResourceQuota,
    Scale,
    Secret,
    Service,
    ServiceAccount,
    StorageClass,
    WebhookConfiguration,
)
from tessera.kube.resources.meta import (
    LabelSelector,
    LabelSelectorRequirement,
    ObjectMeta,
    ObjectReference,
    OwnerReference,
    PartialObject,
    Resource,
    Uid,
    Wire,
    key,
    manifest,
)
from tessera.kube.resources.nodes import (
    Machine,
    Node,
    NodeSpec,
    NodeStatus,
    NodeSystemInfo,
    Taint,
)
from tessera.kube.resources.pods import (
    ComputeQuantities,
    ComputeRequests,
    Condition,
    Container,
    ContainerState,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    EnvVar,
    NodeAffinity,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    SchedulingGate,
    Toleration,
    TopologySpreadConstraint,
)

PODS = Resource("", "v1", "pods", "Pod", True, Pod)
NODES = Resource("", "v1", "nodes", "Node", False, Node)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False, Namespace)
EVENTS = Resource("", "v1", "events", "Event", True, CoreEvent)
SECRETS = Resource("", "v1", "secrets", "Secret", True, Secret)
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", True, ConfigMap)
SERVICES = Resource("", "v1", "services", "Service", True, Service)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True, ServiceAccount)
POD_TEMPLATES = Resource("", "v1", "podtemplates", "PodTemplate", True, PartialObject)
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", True, ResourceQuota)
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, PersistentVolume)
PERSISTENT_VOLUME_CLAIMS = Resource(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, PersistentVolumeClaim
)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, StorageClass)
CSI_NODES = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", False, CsiNode)
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, PartialObject)
PROVISIONING_REQUESTS = Resource(
    "autoscaling.x-k8s.io", "v1", "provisioningrequests", "ProvisioningRequest", True, ProvisioningRequest
)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", True, Lease)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, Deployment)
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True, ReplicaSet)
DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet", True, DaemonSet)
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet", True, Deployment)
#: OpenKruise's controller of pods that it can update in place (``apis/apps/v1alpha1/cloneset_types.go``).
CLONE_SETS = Resource("apps.kruise.io", "v1alpha1", "clonesets", "CloneSet", True, Deployment)
CRONJOBS = Resource("batch", "v1", "cronjobs", "CronJob", True, CronJob)
JOBS = Resource("batch", "v1", "jobs", "Job", True, Job)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    False,
    WebhookConfiguration,
)
CRDS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    False,
    CustomResourceDefinition,
)
OPENSHIFT_PROXIES = Resource("config.openshift.io", "v1", "proxies", "Proxy", False, dict[str, Any])
API_SERVICES = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", False, dict[str, Any])
SELF_SUBJECT_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False, dict[str, Any]
)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False, dict[str, Any])
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False, dict[str, Any]
)
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False, PartialObject)
# Of autoscalers; newer versions of the same group are read as well where the server prefers them.
CAPI_MACHINES = Resource("cluster.x-k8s.io", "v1beta1", "machines", "Machine", True, Machine)
OPENSHIFT_MACHINES = Resource("machine.openshift.io", "v1beta1", "machines", "Machine", True, Machine)
NODECLAIMS = Resource("karpenter.sh", "v1", "nodeclaims", "NodeClaim", False, Machine)
