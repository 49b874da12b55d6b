"""The reference operator's DaemonSets, as far as time goes: their order of containers, images and probes.

All are made together; order is imposed on each node by markers. Driver: startup probe after 60 s and then every 10 s,
also for precompiled drivers, in the chart and in the operator's own assets; OnDelete.
"""

from collections.abc import Mapping
from typing import Any

from tessera_lab.reference_operator.waits import REFERENCE, ReferenceWaits

Json = dict[str, Any]

NAMESPACE = "gpu-operator"
VALIDATOR = "nvcr.io/nvidia/cloud-native/gpu-operator-validator:v23.6.1"
TOOLKIT = "nvcr.io/nvidia/k8s/upstream-container-toolkit:v1.13.4"
PLUGIN = "nvcr.io/nvidia/k8s-device-plugin:v0.14.1"
MANAGER = "nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.6.2"
OTHERS = {
    "nvidia-dcgm-exporter": "nvcr.io/nvidia/k8s/dcgm-exporter:3.1.8",
    "gpu-feature-discovery": "nvcr.io/nvidia/gpu-feature-discovery:v0.8.1",
}

#: ``COMPONENT`` of operands in an image that all share.
DEVICE_PLUGIN, OTHER = "device-plugin", "other"

#: Label of nodes with cards, set by the operator once node feature discovery has labelled them.
PRESENT = "nvidia.com/gpu.present"


def driver_daemonset(
    name: str, image: str, selector: Mapping[str, str], *, driver_toolkit: str = "", waits: ReferenceWaits = REFERENCE
) -> Json:
    """The driver's DaemonSet.

    Args:
        name: its name.
        image: the driver's image.
        selector: the nodes that it is for.
        driver_toolkit: image of OpenShift's Driver Toolkit, which compiles; empty for finished modules.
        waits: its probe's and its builder's.
    """
    probe = {
        "exec": {"command": ["sh", "/usr/local/bin/startup-probe.sh"]},
        "initialDelaySeconds": round(waits.probe_delay),
        "periodSeconds": round(waits.probe_period),
        "timeoutSeconds": 60,
        "failureThreshold": round(1200 / waits.probe_period),
    }
    argv = ["ocp_dtk_entrypoint", "nv-ctr-run-with-dtk"] if driver_toolkit else ["nvidia-driver", "init"]
    containers = [{"name": "nvidia-driver-ctr", "image": image, "command": argv, "startupProbe": probe}]
    if driver_toolkit:
        flag, seconds = "/mnt/shared-nvidia-driver-toolkit/dir_prepared", round(waits.builder_poll)
        script = f"until [ -f {flag} ]; do echo Waiting; sleep {seconds}; done"
        containers.append(
            {
                "name": "openshift-driver-toolkit-ctr",
                "image": driver_toolkit,
                "command": ["bash", "-xc", f"{script}; exec ocp_dtk_entrypoint dtk-build-driver"],
            }
        )
    init = [
        {"name": "k8s-driver-manager", "image": MANAGER, "command": ["driver-manager"], "args": ["uninstall_driver"]}
    ]
    return _daemonset(name, containers, init=init, selector=selector, waits=waits)


def operand_daemonsets(waits: ReferenceWaits = REFERENCE) -> list[Json]:
    """All other DaemonSets, in the order in which the operator makes them."""
    nodes = {PRESENT: "true"}
    return [
        _daemonset(
            "nvidia-container-toolkit-daemonset",
            [{"name": "nvidia-container-toolkit-ctr", "image": TOOLKIT}],
            init=[_validation("driver")],
            selector=nodes,
            waits=waits,
        ),
        _daemonset(
            "nvidia-operator-validator",
            [{"name": "nvidia-operator-validator", "image": VALIDATOR}],
            init=[_validation("driver"), _validation("toolkit"), _validation("cuda")],
            selector=nodes,
            waits=waits,
        ),
        _daemonset(
            "nvidia-device-plugin-daemonset",
            [_operand("nvidia-device-plugin", PLUGIN, DEVICE_PLUGIN, waits)],
            init=[_validation("wait")],
            selector=nodes,
            waits=waits,
        ),
        *(
            _daemonset(
                name,
                [_operand(name, image, OTHER, waits)],
                init=[_validation("wait")],
                selector=nodes,
                waits=waits,
            )
            for name, image in OTHERS.items()
        ),
    ]


def _operand(name: str, image: str, component: str, waits: ReferenceWaits) -> Json:
    """An operand's container: of its own image, or of the one that all share."""
    if waits.separate_images:
        return {"name": name, "image": image}
    return {"name": name, "image": VALIDATOR, "env": [{"name": "COMPONENT", "value": component}]}


def _validation(component: str) -> Json:
    return {
        "name": f"{component}-validation",
        "image": VALIDATOR,
        "command": ["sh", "-c"],
        "args": ["nvidia-validator"],
        "env": [{"name": "COMPONENT", "value": component}, {"name": "WITH_WAIT", "value": "true"}],
    }


#: As the DaemonSets of the operator itself have them (gpu-operator, assets).
_PRIVILEGED: Json = {"securityContext": {"privileged": True}}


def _daemonset(
    name: str, containers: list[Json], *, init: list[Json], selector: Mapping[str, str], waits: ReferenceWaits
) -> Json:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "OnDelete"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": dict(selector),
                    **({} if waits.after_ready else {"hostNetwork": True}),
                    "tolerations": [
                        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
                        if waits.after_ready
                        else {"operator": "Exists"}
                    ],
                    "terminationGracePeriodSeconds": 30,
                    "initContainers": [_PRIVILEGED | each for each in init],
                    "containers": [_PRIVILEGED | each for each in containers],
                },
            },
        },
    }
