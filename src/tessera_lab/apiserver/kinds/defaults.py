"""Defaults of the built-in kinds other than pods: ``pkg/apis/<group>/<version>/defaults.go``. Pure, in place."""

import base64
from collections.abc import Mapping
from typing import Any

from tessera_lab.apiserver.interfaces import Obj
from tessera_lab.apiserver.kinds.volume_rules import default_claim
from tessera_lab.apiserver.pods.defaults import canonicalize_quantities, default_pod_spec, fill_in

#: How long a service with ``sessionAffinity: ClientIP`` sends a client to the same pod, seconds.
CLIENT_IP_SECONDS = 10800


def default_template(spec: Obj) -> None:
    """Defaults of the pods of a workload's template."""
    template = spec.get("template")
    if isinstance(template, dict) and isinstance(template.get("spec"), dict):
        default_pod_spec(template["spec"])


def default_deployment(obj: Obj) -> None:
    """Defaults of a Deployment."""
    spec = obj.setdefault("spec", {})
    default_template(spec)
    fill_in(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600, strategy={})
    fill_in(spec["strategy"], type="RollingUpdate")
    if spec["strategy"]["type"] == "RollingUpdate":
        fill_in(spec["strategy"], rollingUpdate={})
        fill_in(spec["strategy"]["rollingUpdate"], maxUnavailable="25%", maxSurge="25%")


def default_replica_set(obj: Obj) -> None:
    """Defaults of a ReplicaSet."""
    spec = obj.setdefault("spec", {})
    default_template(spec)
    fill_in(spec, replicas=1)


def default_stateful_set(obj: Obj) -> None:
    """Defaults of a StatefulSet."""
    spec = obj.setdefault("spec", {})
    default_template(spec)
    fill_in(spec, replicas=1, revisionHistoryLimit=10, podManagementPolicy="OrderedReady", updateStrategy={})
    update = spec["updateStrategy"]
    if not update.get("type"):  # an object that states only the type gets no default partition
        update["type"] = "RollingUpdate"
        fill_in(update, rollingUpdate={})
    if update["type"] == "RollingUpdate" and update.get("rollingUpdate") is not None:
        fill_in(update["rollingUpdate"], partition=0)
    fill_in(spec, persistentVolumeClaimRetentionPolicy={})
    fill_in(spec["persistentVolumeClaimRetentionPolicy"], whenDeleted="Retain", whenScaled="Retain")
    for claim in spec.get("volumeClaimTemplates") or ():
        fill_in(claim, kind="PersistentVolumeClaim", apiVersion="v1", status={})
        fill_in(claim["status"], phase="Pending")
        default_claim(claim)


def default_daemon_set(obj: Obj) -> None:
    """Defaults of a DaemonSet."""
    spec = obj.setdefault("spec", {})
    default_template(spec)
    fill_in(spec, revisionHistoryLimit=10, updateStrategy={})
    fill_in(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        fill_in(spec["updateStrategy"], rollingUpdate={})
        fill_in(spec["updateStrategy"]["rollingUpdate"], maxUnavailable=1, maxSurge=0)


def default_job(obj: Obj) -> None:
    """Defaults of a Job."""
    spec = obj.setdefault("spec", {})
    default_template(spec)
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    policy = spec.get("podFailurePolicy")
    fill_in(spec, parallelism=1, completionMode="NonIndexed", suspend=False)
    fill_in(spec, podReplacementPolicy="TerminatingOrFailed" if policy is None else "Failed")
    fill_in(spec, backoffLimit=6 if spec.get("backoffLimitPerIndex") is None else 2**31 - 1)
    for rule in (policy or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            fill_in(pattern, status="True")
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels and not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = dict(labels)


def prepare_new_job(obj: Obj) -> None:
    """Sets the selector and labels that bind a new job's pods to it."""
    spec, meta = obj["spec"], obj["metadata"]
    if spec.get("manualSelector"):
        return
    uid, name = meta["uid"], meta.get("name", "")
    own = {"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name}
    legacy = {"controller-uid": uid, "job-name": name}
    template = spec.setdefault("template", {}).setdefault("metadata", {})
    template["labels"] = {**(template.get("labels") or {}), **own, **legacy}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}


def default_service(obj: Obj) -> None:
    """Defaults of a Service."""
    spec = obj.setdefault("spec", {})
    fill_in(spec, sessionAffinity="None", type="ClusterIP")
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    else:
        client = ((spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}).get("timeoutSeconds")
        spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": client or CLIENT_IP_SECONDS}}
    if spec["type"] == "ExternalName":
        return
    if spec["type"] in {"NodePort", "LoadBalancer"}:
        fill_in(spec, externalTrafficPolicy="Cluster")
    if spec["type"] == "LoadBalancer":
        fill_in(spec, allocateLoadBalancerNodePorts=True)
    fill_in(spec, internalTrafficPolicy="Cluster", ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack")
    for port in spec.get("ports") or ():
        fill_in(port, protocol="TCP", targetPort=port.get("port"))


def prepare_new_service(obj: Obj) -> None:
    """Sets the address of a new service, in 10.96.0.0/12, derived from its uid; nothing routes it."""
    spec = obj["spec"]
    if spec["type"] == "ExternalName" or spec.get("clusterIP"):
        return
    drawn = int(obj["metadata"]["uid"][:8], 16)
    spec["clusterIP"] = f"10.{96 + drawn % 16}.{drawn >> 4 & 255}.{1 + (drawn >> 12) % 254}"
    spec["clusterIPs"] = [spec["clusterIP"]]
    obj["status"] = {"loadBalancer": {}}


def default_node(obj: Obj) -> None:
    """Sets a node's amounts in canonical form; ``allocatable`` defaults to ``capacity``."""
    status = obj.get("status")
    if isinstance(status, dict):
        if status.get("capacity") and status.get("allocatable") is None:
            status["allocatable"] = dict(status["capacity"])
        canonicalize_quantities(status, "capacity", "allocatable")


def default_limit_range(obj: Obj) -> None:
    """Completes the defaults of containers: a limit from the maximum, a request from the limit, else the minimum.

    So a maximum of a GPU resource gives that many to each container of the namespace (``SetDefaults_LimitRangeItem``).
    """
    for item in obj["spec"].get("limits") or ():
        for key in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio"):
            canonicalize_quantities(item, key)
        if item.get("type") == "Container":
            default = {**(item.get("max") or {}), **(item.get("default") or {})}
            request = {**(item.get("min") or {}), **default, **(item.get("defaultRequest") or {})}
            item.update({"default": default} if default else {})
            item.update({"defaultRequest": request} if request else {})


def default_quota(obj: Obj) -> None:
    """Sets a quota's amounts in canonical form."""
    if isinstance(obj.get("spec"), dict):
        canonicalize_quantities(obj["spec"], "hard")


def default_secret(obj: Obj) -> None:
    """Defaults of a Secret; ``stringData`` goes into ``data``."""
    fill_in(obj, type="Opaque")
    plain = obj.pop("stringData", None)
    if plain:
        encoded = {key: base64.b64encode((value or "").encode()).decode() for key, value in plain.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}


def default_endpoints(obj: Obj) -> None:
    """Defaults of Endpoints."""
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            fill_in(port, protocol="TCP")


def default_endpoint_slice(obj: Obj) -> None:
    """Defaults of an EndpointSlice."""
    for port in obj.get("ports") or ():
        fill_in(port, name="", protocol="TCP")


def default_webhooks(obj: Obj) -> None:
    """Defaults of mutating and validating webhook configurations."""
    for each in obj.get("webhooks") or ():
        fill_in(each, failurePolicy="Fail", matchPolicy="Equivalent", namespaceSelector={}, objectSelector={})
        fill_in(each, timeoutSeconds=10)
        if obj.get("kind") == "MutatingWebhookConfiguration":
            fill_in(each, reinvocationPolicy="Never")
        for rule in each.get("rules") or ():
            fill_in(rule, scope="*")
        reference = (each.get("clientConfig") or {}).get("service")
        if reference:
            fill_in(reference, port=443)


def default_priority_class(obj: Obj) -> None:
    """Defaults of a PriorityClass."""
    fill_in(obj, preemptionPolicy="PreemptLowerPriority")


def default_role_binding(obj: Obj) -> None:
    """Defaults of role bindings: the API group of subjects and role."""
    group = "rbac.authorization.k8s.io"
    if isinstance(obj.get("roleRef"), dict):
        fill_in(obj["roleRef"], apiGroup=group)
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in {"User", "Group"}:
            fill_in(subject, apiGroup=group)


def default_event(obj: Obj) -> None:
    """Sets the times of an event, which every reader expects."""
    if obj.get("apiVersion") == "v1":
        fill_in(obj, source={}, reportingComponent="", reportingInstance="")


def prepare_new_namespace(obj: Obj) -> None:
    """Sets the finalizer and the phase of a new namespace."""
    finalizers = obj.setdefault("spec", {}).get("finalizers") or []
    obj["spec"]["finalizers"] = finalizers if "kubernetes" in finalizers else [*finalizers, "kubernetes"]
    obj["status"] = {"phase": "Active"}
    name = obj["metadata"].get("name", "")
    obj["metadata"]["labels"] = {**(obj["metadata"].get("labels") or {}), "kubernetes.io/metadata.name": name}


def prepare_namespace_deletion(obj: Obj) -> None:
    """Sets the phase of a namespace that is being deleted."""
    obj.setdefault("status", {})["phase"] = "Terminating"


def prepare_namespace_update(obj: Obj, old: Mapping[str, Any]) -> None:
    """Restores a namespace's finalizers, which change through their subresource only."""
    obj["spec"] = {**obj.get("spec", {}), "finalizers": (old.get("spec") or {}).get("finalizers", [])}
