"""What Kueue's webhooks do to objects with a queue's label, by its documentation and its published source.

Pods are held by a gate, or by two where topologies are used; Jobs are suspended; Deployments pass the label on to their
pods, StatefulSets make their pods a group that is admitted with its first pod.
"""

import base64
import hashlib
from typing import Any

import msgspec

from tessera.api.pod_annotations import KUEUE_COUNT_ANNOTATION, KUEUE_FAST_ANNOTATION, KUEUE_GROUP_NAME
from tessera.kueue.objects import (
    ADMISSION_GATE,
    CONFIG_NAMESPACE,
    QUEUE_LABEL,
    TOPOLOGY_GATE,
)

Json = dict[str, Any]

SERVICE = "kueue-webhook-service"
MANAGED = "kueue.x-k8s.io/managed"
ROLE_HASH = "kueue.x-k8s.io/role-hash"


def configuration(name: str) -> Json:
    """The MutatingWebhookConfiguration; configurations are called in the order of their names."""
    service = {"name": SERVICE, "namespace": CONFIG_NAMESPACE, "path": "/mutate"}

    def entry(hook: str, group: str, *plurals: str) -> Json:
        return {
            "name": hook,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "clientConfig": {"service": service},
            "rules": [
                {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": list(plurals)}
            ],
            "namespaceSelector": {
                "matchExpressions": [
                    {
                        "key": "kubernetes.io/metadata.name",
                        "operator": "NotIn",
                        "values": ["kube-system", CONFIG_NAMESPACE, "tessera-system"],
                    }
                ]
            },
        }

    hooks = [
        entry("mjob.kb.io", "batch", "jobs"),
        entry("mdeployment.kb.io", "apps", "deployments", "statefulsets"),
        entry("mpod.kb.io", "", "pods"),
    ]
    return {"metadata": {"name": name}, "webhooks": hooks}


class KueueWebhooks:
    """Answers reviews.

    Args:
        topology: also hold pods by the gate of topologies, as Kueue 0.14 and newer does.
        everything: suspend Jobs that name no queue too, as ``manageJobsWithoutQueueName`` does.
    """

    def __init__(self, *, topology: bool = False, everything: bool = False) -> None:
        self._topology = topology
        self._everything = everything

    def review(self, body: bytes) -> bytes:
        """Returns the answer to an AdmissionReview."""
        request = msgspec.json.decode(body)["request"]
        response: Json = {"uid": request["uid"], "allowed": True}
        patch = self._patch(request["kind"]["kind"], request["object"])
        if patch:
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
        return msgspec.json.encode(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        )

    def _patch(self, kind: str, item: Json) -> list[Json]:
        labels = item["metadata"].get("labels") or {}
        if QUEUE_LABEL not in labels and not (self._everything and kind == "Job"):
            return []
        match kind:
            case "Job":
                return [_add("/spec/suspend", True)]
            case "Deployment":
                return self._template_labels(item, {QUEUE_LABEL: labels[QUEUE_LABEL]}, {})
            case "StatefulSet":
                name = item["metadata"]["name"]
                count = str(item["spec"].get("replicas", 1))
                group = {
                    KUEUE_GROUP_NAME: workload_name("statefulset", name, name),
                    KUEUE_COUNT_ANNOTATION: count,
                    KUEUE_FAST_ANNOTATION: "true",
                }
                return self._template_labels(item, {QUEUE_LABEL: labels[QUEUE_LABEL]}, group)
        return self._pod(item, labels)

    @staticmethod
    def _template_labels(item: Json, labels: Json, annotations: Json) -> list[Json]:
        meta = item["spec"]["template"].get("metadata") or {}
        made = {
            **meta,
            "labels": {**(meta.get("labels") or {}), **labels},
            "annotations": {**(meta.get("annotations") or {}), **annotations},
        }
        return [_add("/spec/template/metadata", made)]

    def _pod(self, item: Json, labels: Json) -> list[Json]:
        meta, spec = item["metadata"], item["spec"]
        gates = spec.get("schedulingGates") or []
        wanted = [ADMISSION_GATE, *([TOPOLOGY_GATE] if self._topology else [])]
        missing = [{"name": name} for name in wanted if all(gate["name"] != name for gate in gates)]
        if not missing and labels.get(MANAGED) == "true":
            return []
        annotations = {**(meta.get("annotations") or {}), ROLE_HASH: role_hash(spec)}
        return [
            _add("/metadata/labels", {**labels, MANAGED: "true"}),
            _add("/metadata/annotations", annotations),
            _add("/metadata/finalizers", [*(meta.get("finalizers") or []), MANAGED]),
            _add("/spec/schedulingGates", [*gates, *missing]),
        ]


def role_hash(spec: Json) -> str:
    """A hash of a pod's shape: its containers; pods of a group with one hash are one pod set."""
    return _digest(msgspec.json.encode([spec.get("initContainers"), spec["containers"]]), 8)


def workload_name(kind: str, name: str, uid: str) -> str:
    """The name of an object's Workload: kind, name, and five characters of a hash."""
    return f"{kind}-{name}-{_digest(uid.encode(), 5)}"


def _digest(text: bytes, length: int) -> str:
    return hashlib.sha256(text).hexdigest()[:length]


def _add(path: str, value: Any) -> Json:
    return {"op": "add", "path": path, "value": value}
