"""The objects of one build in the cluster: a Job, and the ConfigMap with its Containerfile and scripts.

The Containerfiles and scripts are files beside this module (``files/``). They follow NVIDIA's published procedures
(gpu-driver-container, ``ubuntu*/precompiled`` and ``rhel*/precompiled``) but are written by this project, with three
differences:

1. Everything is installed when the image is built, so a container only loads modules.
2. On RHEL the kernel's own ``make`` builds the modules, and the libraries come from the same ``.run`` file. So no
   repository of NVIDIA's has to carry them.
3. A restarted container keeps a loaded driver if it has the container's version.

Not run so far: the tests of this project have no container engine, no registry of Red Hat's and no archive of
Canonical's. The tests parse the shell scripts, and a shell runs the entry point against folders that imitate a machine.
Only a build and a node can show that the packages fit together and that the modules load.

Images made by these files do not support vGPU, GPUDirect Storage or GDRCopy. For module type ``auto`` a build knows the
driver branch but not the GPUs: for GPUs before Turing set ``proprietary`` if the branch is 560 or later.

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
import shlex
from collections.abc import Mapping
from importlib import resources
from typing import Any

from tessera.driver.build.orders import BuildFamily, BuildOrder

#: Files that are part of every image and run on nodes.
ENTRYPOINT = "nvidia-driver.sh"
#: The script that the Job runs.
SCRIPT = "build.sh"

_PARTS: Mapping[BuildFamily, tuple[str, ...]] = {
    BuildFamily.UBUNTU: ("install-ubuntu.sh", ENTRYPOINT),
    BuildFamily.RHEL: ("build-kmod.sh", "install-rhel.sh", "rhsm.sh", ENTRYPOINT),
}

#: Secrets of a build by their ids in the Containerfile, and the files that contain them.
SECRETS = ("rhsm_org", "rhsm_activationkey", "signing_key", "signing_certificate")


def build_file(name: str) -> str:
    """One of the files beside this module."""
    return resources.files(__package__).joinpath("files", name).read_text(encoding="utf-8")


def containerfile(family: BuildFamily) -> str:
    """The Containerfile for a family of systems."""
    return build_file(f"{family.value}.Containerfile")


def build_context(family: BuildFamily) -> dict[str, str]:
    """All files that a build needs in its folder, including ``Containerfile``."""
    return {"Containerfile": containerfile(family)} | {name: build_file(name) for name in _PARTS[family]}


def build_args(order: BuildOrder) -> dict[str, str]:
    """The build arguments of an order, in the sequence of the Containerfile."""
    if order.family is BuildFamily.UBUNTU:
        args = {
            "BASE_IMAGE": order.base_image,
            "KERNEL_VERSION": order.pool.kernel,
            "DRIVER_BRANCH": order.branch,
            "DRIVER_VERSION": order.exact,
        }
    else:
        args = {
            "BUILDER_IMAGE": order.builder_image,
            "BASE_IMAGE": order.base_image,
            "KERNEL_VERSION": order.pool.kernel,
            "DRIVER_VERSION": order.exact,
            "DOWNLOADS": order.settings.downloads,
        }
    return args | {
        "MODULES": "open" if order.open_modules else "proprietary",
        "NVSWITCH": "yes" if order.settings.nvswitch else "no",
        "TARGETARCH": order.pool.architecture,
    }


def build_options(order: BuildOrder) -> list[str]:
    """The build arguments as options of ``buildah build`` and ``podman build``."""
    return [part for name, value in build_args(order).items() for part in ("--build-arg", f"{name}={value}")]


def local_commands(order: BuildOrder, *, tool: str = "buildah", folder: str = "driver-build") -> str:
    """Shell lines that run the same build with buildah or podman on a machine of the order's architecture.

    Args:
        order: what to build.
        tool: buildah or podman.
        folder: the folder with the files of :func:`build_context`.
    """
    secrets = [f"--secret=id={name},src={name}" for name in SECRETS] if order.family is BuildFamily.RHEL else []
    build = [tool, "build", "--format=oci", *build_options(order), *secrets, "--tag", order.target, folder]
    lines = [_wrap_command(build), shlex.join([tool, "push", order.target])]
    if secrets:
        lines.insert(0, "# Leave out the --secret options of files that you do not have.")
    if order.shares_tag:
        lines.append(
            "# The tag does not name the architecture: where nodes of both have it, push a manifest list of both."
        )
    return "\n".join(lines)


def _wrap_command(command: list[str]) -> str:
    """The command with one option on each line, each option together with its value."""
    lines: list[list[str]] = [[]]
    for word in command:
        if word.startswith("-") or word == command[-1]:
            lines.append([])
        lines[-1].append(word)
    return " \\\n  ".join(shlex.join(line) for line in lines)


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
