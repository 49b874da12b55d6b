"""The reference operator's order of steps: its waits as values, and its DaemonSets.

The DaemonSets have what takes time: their order of containers, images and probes. All are made together; order is
imposed on each node by markers. Driver: startup probe after 60 s and then every 10 s, also for precompiled drivers, in
the chart and in the operator's own assets; OnDelete.

The waits are values, so that each can be removed by itself. A wait of 0 means that the program reacts at once. Two more
things are among them, since they take seconds and are no work either: overlaps that the reference does not have, and
kubelet's own period, which both orders of steps have.

Sources: gpu-operator (assets of the driver's, the toolkit's and the validator's DaemonSets; validator's main), v23.6.1
to v26.7.0.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

#: A program that hears of a marker at once; not 0, since a loop without a wait would never let others go on.
AT_ONCE = 0.05
_Step = tuple[str, dict[str, float | bool]]
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
#: As the DaemonSets of the operator itself have them (gpu-operator, assets).
_PRIVILEGED: Json = {"securityContext": {"privileged": True}}


class ReferenceWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds.

    Attributes:
        probe_delay: the driver's startup probe begins so late.
        probe_period: and asks so often.
        toolkit_poll: the toolkit's container looks for the driver's marker so often.
        toolkit_sleep: and sleeps so long once it has found it.
        validator_poll: the validator and its clients look for markers so often.
        builder_poll: the Driver Toolkit's container looks for work so often.
        discovery: node feature discovery is waited for.
        after_ready: pods are started once the node has a network; otherwise with the host's, before.
        separate_images: each operand has an image of its own; otherwise they share one.
        reconcile: the operator goes through all its states before a change counts.
        proves_driver: the driver is validated by itself before the toolkit begins; otherwise with the toolkit only.
        starts_plugin: what offers the cards is started once the toolkit is validated; otherwise it runs already, and
            offers them once everything is.
        publish_every: kubelet publishes what a node offers so often (its nodeStatusUpdateFrequency); None for at once.
            It is kubelet's, so both orders of steps have it.
    """

    probe_delay: float = 60.0
    probe_period: float = 10.0
    toolkit_poll: float = 5.0
    toolkit_sleep: float = 5.0
    validator_poll: float = 5.0
    builder_poll: float = 10.0
    discovery: bool = True
    after_ready: bool = True
    separate_images: bool = True
    reconcile: bool = True
    proves_driver: bool = True
    starts_plugin: bool = True
    publish_every: float | None = 10.0


#: The waits of the real operator.
REFERENCE = ReferenceWaits()
#: The same under a kubelet that publishes at once.
PUBLISHED_AT_ONCE = ReferenceWaits(publish_every=None)


def remove_wait(*, new_node: bool, built: bool) -> list[tuple[str, ReferenceWaits]]:
    """The reference with one wait or obstacle after the other taken out, each on top of those before; by its name.

    What looks at intervals rounds what comes before it, so the last of them is taken out first. Kubelet, the very last,
    publishes at once in all steps.

    Args:
        new_node: nodes are new, so that features are discovered and images pulled.
        built: the driver is built on the node.
    """
    builds: list[_Step] = [("wait: Driver Toolkit polls every 10 s", {"builder_poll": 1.0})]
    fresh: list[_Step] = [
        ("wait: node feature discovery", {"discovery": False}),
        ("overlap: pulls begin before the node is Ready", {"after_ready": False}),
        ("overlap: one image instead of one an operand", {"separate_images": False}),
    ]
    steps: list[_Step] = [
        ("wait: validator and its clients poll every 5 s", {"validator_poll": AT_ONCE}),
        ("wait: toolkit polls every 5 s and sleeps 5 s", {"toolkit_poll": AT_ONCE, "toolkit_sleep": 0.0}),
        ("wait: driver's startup probe, 60 s and then every 10 s", {"probe_delay": 0.0, "probe_period": 1.0}),
        *(builds if built else ()),
        ("wait: a reconcile through all states", {"reconcile": False}),
        *(fresh if new_node else ()),
        ("overlap: the driver is proved once, with the toolkit", {"proves_driver": False}),
        ("overlap: the device plugin runs already, and is not started last", {"starts_plugin": False}),
    ]
    found, now = [], PUBLISHED_AT_ONCE
    for name, changes in steps:
        now = msgspec.structs.replace(now, **changes)
        found.append((name, now))
    return found


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
