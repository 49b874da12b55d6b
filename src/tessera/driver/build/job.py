"""The objects of one build in the cluster: a Job, and the ConfigMap with its Containerfile and scripts.

The Job's name contains the build's key and the attempt, so the API server allows each attempt only once, even if
several controllers create it. The ConfigMap's name contains a hash of its data: it never changes, and builds of a
family share it.

buildah runs as user 1000 with ``chroot`` isolation and plain copies as storage, since this needs the least of a node:
no root and no devices. It does need user namespaces, so the pod has no seccomp or AppArmor profile and keeps the two
capabilities with which ``newuidmap`` maps users. On OpenShift ``examples/openshift`` allows this to the account
``tessera-build``. There is no cross compiling: the pod runs on a node of the image's architecture, if possible on one
without GPUs.

Secrets are files in the pod, never environment variables. Those with fixed names are optional:

* ``driver-build-pull`` (kubernetes.io/dockerconfigjson): for base images and the Driver Toolkit;
* ``driver-build-rhsm``: keys ``org`` and ``activationkey``;
* ``driver-build-signing-key``: keys ``private_key.priv`` (PEM) and ``public_key.der``.
"""

import hashlib
from typing import Any

from tessera.driver.build.containerfiles import SCRIPT, build_context, build_file, build_options
from tessera.driver.build.families import BuildFamily
from tessera.driver.build.orders import BuildOrder

#: Label of Jobs, their pods, and ConfigMaps of builds.
APP_LABEL = "app.kubernetes.io/name"
APP = "tessera-driver-build"
#: Label of Jobs: :attr:`BuildOrder.key`; annotation: number of the attempt, from 1; label: :attr:`BuildOrder.tag_key`.
KEY_LABEL = "tessera.dev/build"
TAG_LABEL = "tessera.dev/build-tag"
ATTEMPT_ANNOTATION = "tessera.dev/build-attempt"
TARGET_ANNOTATION = "tessera.dev/build-target"
POOL_ANNOTATION = "tessera.dev/build-pool"

SERVICE_ACCOUNT = "tessera-build"
PULL_SECRET = "driver-build-pull"  # noqa: S105 - a name
RHSM_SECRET = "driver-build-rhsm"  # noqa: S105 - a name
SIGNING_SECRET = "driver-build-signing-key"  # noqa: S105 - a name

#: Timeout of a build, seconds. NVIDIA's own builds take about 19 minutes (gpu-driver-container #981, derived).
DEADLINE = 3600
#: Pods that may fail before the Job fails: a node may be lost, or a registry may answer with an error for a moment.
POD_RETRIES = 1
#: Seconds that a finished Job is kept: its log can be read, and its image is not built again at once.
JOB_TTL = 24 * 3600

#: The annotation that clusters before 1.30 read instead of ``appArmorProfile``; ``build`` is the container's name.
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/build"

_OTHER = {"amd64": "arm64", "arm64": "amd64"}


def job_name(order: BuildOrder, attempt: int) -> str:
    """The name of the Job of one attempt."""
    return f"{order.name}-{attempt}"


def build_config_map(family: BuildFamily) -> dict[str, Any]:
    """The ConfigMap of a family's builds."""
    data = build_context(family) | {SCRIPT: build_file(SCRIPT)}
    digest = hashlib.sha256("\0".join(f"{name}\0{data[name]}" for name in sorted(data)).encode()).hexdigest()[:10]
    return {
        "metadata": {"name": f"tessera-build-{family.value}-{digest}", "labels": {APP_LABEL: APP}},
        "immutable": True,
        "data": data,
    }


def build_job(order: BuildOrder, attempt: int) -> dict[str, Any]:
    """The Job of one attempt."""
    labels = {APP_LABEL: APP, KEY_LABEL: order.key, TAG_LABEL: order.tag_key}
    annotations = {
        ATTEMPT_ANNOTATION: str(attempt),
        TARGET_ANNOTATION: order.target,
        POOL_ANNOTATION: order.pool.text,
    }
    return {
        "metadata": {"name": job_name(order, attempt), "labels": labels, "annotations": annotations},
        "spec": {
            "backoffLimit": POD_RETRIES,
            "activeDeadlineSeconds": DEADLINE,
            "ttlSecondsAfterFinished": JOB_TTL,
            "template": {
                "metadata": {
                    "labels": {APP_LABEL: APP, KEY_LABEL: order.key},
                    # If an autoscaler removes the node, the build has to start again.
                    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", _APPARMOR: "unconfined"},
                },
                "spec": _pod(order),
            },
        },
    }


def _pod(order: BuildOrder) -> dict[str, Any]:
    volumes = _volumes(order)
    return {
        "restartPolicy": "Never",
        "serviceAccountName": SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        "nodeSelector": {"kubernetes.io/os": "linux", "kubernetes.io/arch": order.pool.architecture},
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_WITHOUT_CARDS]}},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "securityContext": {
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "Unconfined"},
        },
        "containers": [_container(order, volumes)],
        "volumes": [volume for volume, _ in volumes],
    }


#: Prefers nodes without GPUs, since GPU nodes are expensive.
_WITHOUT_CARDS = {
    "weight": 100,
    "preference": {"matchExpressions": [{"key": "nvidia.com/gpu.present", "operator": "DoesNotExist"}]},
}


def _container(order: BuildOrder, volumes: list[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    environment = {
        "TARGET": order.target,
        "ARCHITECTURE": order.pool.architecture,
        "OTHER": _OTHER[order.pool.architecture] if order.shares_tag else "",
        "TLS_VERIFY": "true" if order.settings.tls_verify else "false",
        "STORAGE_DRIVER": "vfs",
        "BUILDAH_ISOLATION": "chroot",
    }
    return {
        "name": "build",
        "image": order.settings.buildah_image,
        "command": ["sh", f"/context/{SCRIPT}"],
        "args": build_options(order),
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        # On failure the message is the end of the log; on success the script writes the pushed digest to the file.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {
            "requests": {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "20Gi"},
            "limits": {"memory": "8Gi", "ephemeral-storage": "40Gi"},
        },
        "securityContext": {
            # newuidmap and newgidmap get their capabilities when they are executed.
            "allowPrivilegeEscalation": True,
            "appArmorProfile": {"type": "Unconfined"},
            "capabilities": {"drop": ["ALL"], "add": ["SETUID", "SETGID"]},
        },
        "volumeMounts": [{"name": volume["name"], "mountPath": path} for volume, path in volumes],
    }


def _volumes(order: BuildOrder) -> list[tuple[dict[str, Any], str]]:
    """Each volume and its mount path. Secrets that may not exist are ``optional``."""
    found: list[tuple[dict[str, Any], str]] = [
        ({"name": "context", "configMap": {"name": build_config_map(order.family)["metadata"]["name"]}}, "/context"),
        ({"name": "storage", "emptyDir": {}}, "/home/build/.local/share/containers"),
        (_docker_config("pull-auth", PULL_SECRET, optional=True), "/auth/pull"),
    ]
    if order.settings.push_secret:
        found.append((_docker_config("push-auth", order.settings.push_secret, optional=False), "/auth/push"))
    if order.settings.ca_config_map:
        found.append(({"name": "certs", "configMap": {"name": order.settings.ca_config_map}}, "/certs"))
    if order.family is BuildFamily.RHEL:
        found.append(({"name": "secrets", "projected": {"sources": _SECRETS}}, "/secrets"))
    return found


def _docker_config(name: str, secret: str, *, optional: bool) -> dict[str, Any]:
    items = [{"key": ".dockerconfigjson", "path": "config.json"}]
    return {"name": name, "secret": {"secretName": secret, "items": items, "optional": optional}}


def _optional(secret: str, **files: str) -> dict[str, Any]:
    items = [{"key": key, "path": path} for path, key in files.items()]
    return {"secret": {"name": secret, "items": items, "optional": True}}


_SECRETS = [
    _optional(RHSM_SECRET, rhsm_org="org", rhsm_activationkey="activationkey"),
    _optional(SIGNING_SECRET, signing_key="private_key.priv", signing_certificate="public_key.der"),
]
