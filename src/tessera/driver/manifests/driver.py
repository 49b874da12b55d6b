"""The DaemonSet of a driver set: runs NVIDIA's driver container on every node that carries the set's label.

Its pods tolerate every taint and use the host's network, so kubelet pulls the image before the node has a pod network.
The update strategy is OnDelete: only a change of a node's label replaces its pod.
"""

from collections.abc import Mapping
from typing import Any

from tessera.api.nodes.node_marks import DRIVER_APP, DRIVER_SET_LABEL, DriverStrategy
from tessera.driver.driver_sets import (
    APP_LABEL,
    BUILD_CONTAINER,
    DRIVER_ACCOUNT,
    DRIVER_CONTAINER,
    MANAGER_CONTAINER,
    SET_ANNOTATION,
    DriverSet,
    Json,
    secrets,
    set_labels,
    set_text,
)
from tessera.driver.manifests import host
from tessera.driver.manifests.configs import NO_PROXY, Keys, Proxy, extras
from tessera.driver.manifests.host import driver_startup, driver_stop
from tessera.gpu_operator.driver_policy import DriverPolicy, OperandSettings

_PRIVILEGED: Json = {"privileged": True, "seLinuxOptions": {"level": "s0"}}
_SHARED = "shared-nvidia-driver-toolkit"
_SHARED_FOLDER = f"/mnt/{_SHARED}"
#: Variables that name the driver and the node; a policy's own variables do not replace them.
_OURS = ("NVIDIA_VISIBLE_DEVICES", "NODE_NAME", "NODE_IP", "OPERATOR_NAMESPACE", "DRIVER_CONFIG_DIGEST")


def driver_daemonset(policy: DriverPolicy, made: DriverSet, keys: Keys, proxy: Proxy = NO_PROXY) -> Json:
    """The DaemonSet.

    Args:
        policy: the policy of its nodes.
        made: the driver set.
        keys: keys of the ConfigMaps that the policy names.
        proxy: the cluster's proxy.

    Raises:
        DriverConfigError: an object that the policy names cannot be mounted.
    """
    labels = {
        **policy.labels,
        "nvidia.com/precompiled": "false" if made.strategy is DriverStrategy.BUILT else "true",
        **set_labels(made),
    }
    return {
        "metadata": {
            "name": made.name,
            "labels": labels,
            "annotations": {**policy.annotations, SET_ANNOTATION: set_text(made)},
        },
        "spec": {
            # The name is part of the selector: else the DaemonSet would adopt a matching pod without a controller, such
            # as a validation pod.
            "selector": {"matchLabels": {APP_LABEL: DRIVER_APP, DRIVER_SET_LABEL: made.id}},
            "updateStrategy": {"type": "OnDelete"},
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {
                        **policy.annotations,
                        "kubectl.kubernetes.io/default-container": DRIVER_CONTAINER,
                    },
                },
                "spec": _pod(policy, made, keys, proxy),
            },
        },
    }


def _pod(policy: DriverPolicy, made: DriverSet, keys: Keys, proxy: Proxy) -> Json:
    added = extras(policy, made, keys)
    mounts = [*proxy.mounts(), *(mount for extra in added for mount in extra.mounts)]
    containers = [_driver(policy, made, mounts, proxy)]
    groups = [host.driver_mounts(policy)]
    if policy.rdma:
        containers.append(_peermem(policy, made))
        groups.append(host.peermem_mounts())
    if _builds_apart(made):
        containers.append(_toolkit(policy, made))
        groups.append(host.build_mounts(policy))
    if _has_manager(policy.manager):
        groups.append(host.manager_mounts())
    shared = [{"name": _SHARED, "emptyDir": {}}] if _builds_apart(made) else []
    network = policy.host_network is not False
    return {
        "nodeSelector": {DRIVER_SET_LABEL: made.id},
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": policy.priority_class,
        "serviceAccountName": DRIVER_ACCOUNT,
        "hostPID": True,
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if network else {}),
        **secrets(*policy.source.pull_secrets, *policy.manager.source.pull_secrets),
        **({"initContainers": [_manager(policy, made)]} if _has_manager(policy.manager) else {}),
        "containers": containers,
        "volumes": [*host.volumes(*groups), *(extra.volume for extra in added), *shared, *proxy.volumes()],
    }


def _driver(policy: DriverPolicy, made: DriverSet, mounts: list[Json], proxy: Proxy) -> Json:
    apart = _builds_apart(made)
    command, args = (["ocp_dtk_entrypoint"], ["nv-ctr-run-with-dtk"]) if apart else (["nvidia-driver"], ["init"])
    shared = [{"name": _SHARED, "mountPath": _SHARED_FOLDER}] if apart else []
    return {
        "name": DRIVER_CONTAINER,
        "image": made.image,
        "imagePullPolicy": policy.source.pull_policy,
        "command": command,
        "args": [*args, *(() if apart else policy.args)],
        "env": _environment(policy, made, proxy),
        **({"envFrom": [{"secretRef": {"name": policy.secret_env}}]} if policy.secret_env else {}),
        "securityContext": _PRIVILEGED,
        "volumeMounts": [*_mounts(host.driver_mounts(policy)), *mounts, *shared],
        "startupProbe": driver_startup(policy.startup_probe),
        "lifecycle": driver_stop(),
        **_resources(policy),
    }


def _environment(policy: DriverPolicy, made: DriverSet, proxy: Proxy) -> list[Json]:
    defaults = [
        # If the nvidia runtime is the default one, it must leave this container alone.
        _value("NVIDIA_VISIBLE_DEVICES", "void"),
        _field("NODE_NAME", "spec.nodeName"),
        _field("NODE_IP", "status.hostIP"),
        # If the value equals that of the last run, a restarted container skips the steps that are done already.
        _value("DRIVER_CONFIG_DIGEST", made.id),
        _value("KERNEL_MODULE_TYPE", policy.kernel_module_type),
    ]
    if policy.kernel_module_type == "open":
        defaults.append(_value("OPEN_KERNEL_MODULES_ENABLED", "true"))  # read by containers older than R560
    if made.strategy is DriverStrategy.BUILT and made.pool.ostree and not made.toolkit:
        defaults += [_value("RHCOS_IMAGE_MISSING", "true"), _value("RHCOS_VERSION", made.pool.ostree)]
    written = [dict(each) for each in policy.env if each.get("name") not in _OURS]
    names = {each["name"] for each in written}
    defaults += [*_rdma(policy), *proxy.environment()]
    return [*(each for each in defaults if each["name"] not in names), *written]


def _rdma(policy: DriverPolicy) -> list[Json]:
    if not policy.rdma:
        return []
    host_mofed = [_value("USE_HOST_MOFED", "true")] if policy.rdma_host_mofed else []
    return [_value("GPU_DIRECT_RDMA_ENABLED", "true"), *host_mofed]


def _manager(policy: DriverPolicy, made: DriverSet) -> Json:
    """The driver manager: unloads what an earlier container left. It evicts no pods; the rollout has done that."""
    fixed = {
        "ENABLE_GPU_POD_EVICTION": "false",
        "ENABLE_AUTO_DRAIN": "false",
        "DRAIN_USE_FORCE": "false",
        "DRAIN_POD_SELECTOR_LABEL": "",
        "DRAIN_TIMEOUT_SECONDS": "0s",
        "DRAIN_DELETE_EMPTYDIR_DATA": "false",
    }
    values = {"NVIDIA_VISIBLE_DEVICES": "void", "DRIVER_CONFIG_DIGEST": made.id, **policy.manager.env, **fixed}
    return {
        "name": MANAGER_CONTAINER,
        "image": image_of(policy.manager),
        "imagePullPolicy": policy.manager.source.pull_policy,
        "command": ["driver-manager"],
        "args": ["uninstall_driver"],
        "env": [
            _field("NODE_NAME", "spec.nodeName"),
            _field("OPERATOR_NAMESPACE", "metadata.namespace"),
            *(_value(name, text) for name, text in values.items()),
            *_rdma(policy),
        ],
        "securityContext": {"privileged": True},
        "volumeMounts": _mounts(host.manager_mounts()),
        **_resources(policy),
    }


def _toolkit(policy: DriverPolicy, made: DriverSet) -> Json:
    """OpenShift's Driver Toolkit, which compiles. If none fits RHCOS, the driver image compiles (entitlements)."""
    missing = [] if made.toolkit else [_value("RHCOS_IMAGE_MISSING", "true")]
    script = (
        f"until [ -f {_SHARED_FOLDER}/dir_prepared ]; do sleep 1; done; "
        f"exec {_SHARED_FOLDER}/ocp_dtk_entrypoint dtk-build-driver"
    )
    return {
        "name": BUILD_CONTAINER,
        "image": made.toolkit or made.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["bash", "-c"],
        "args": [script],
        "env": [
            _value("RHCOS_VERSION", made.pool.ostree),
            _value("NVIDIA_VISIBLE_DEVICES", "void"),
            _value("DRIVER_CONFIG_DIGEST", made.id),
            *missing,
        ],
        "securityContext": _PRIVILEGED,
        "volumeMounts": [
            *_mounts(host.build_mounts(policy)),
            {"name": _SHARED, "mountPath": _SHARED_FOLDER},
        ],
        **_resources(policy),
    }


def _peermem(policy: DriverPolicy, made: DriverSet) -> Json:
    return {
        "name": "nvidia-peermem-ctr",
        "image": made.image,
        "imagePullPolicy": policy.source.pull_policy,
        "command": ["nvidia-driver"],
        "args": ["reload_nvidia_peermem"],
        "env": [_value("NVIDIA_VISIBLE_DEVICES", "void"), *_rdma(policy)],
        "securityContext": _PRIVILEGED,
        "volumeMounts": _mounts(host.peermem_mounts()),
        "livenessProbe": {
            "exec": {"command": ["sh", "-c", "nvidia-driver probe_nvidia_peermem"]},
            "initialDelaySeconds": 30,
            "periodSeconds": 30,
            "timeoutSeconds": 10,
            "failureThreshold": 1,
        },
        **_resources(policy),
    }


def image_of(part: OperandSettings) -> str:
    """The image of the driver manager or the toolkit, as gpu-operator writes it; empty if none is named."""
    source = part.source
    if source.verbatim:
        return source.image
    separator = "@" if source.version.startswith("sha256:") else ":"
    return f"{source.repository}/{source.image}{separator}{source.version}"


def _has_manager(manager: OperandSettings) -> bool:
    return manager.enabled and bool(image_of(manager))


def _builds_apart(made: DriverSet) -> bool:
    """True on RHCOS: its driver container has no compiler, so a second container builds."""
    return made.strategy is DriverStrategy.BUILT and bool(made.pool.ostree)


def _mounts(mounts: list[host.HostMount]) -> list[Json]:
    return [each.mount() for each in mounts]


def _resources(policy: DriverPolicy) -> Mapping[str, Any]:
    return {"resources": dict(policy.resources)} if policy.resources else {}


def _value(name: str, text: str) -> Json:
    return {"name": name, "value": text}


def _field(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
