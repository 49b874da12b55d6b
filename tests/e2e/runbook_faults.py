"""The fault of each alert in a lab, as its page in ``docs/runbooks/`` finds it."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from tests.support.running_lab import RunningLab

Play = Callable[[RunningLab], None]


def nothing(_lab: RunningLab) -> None:
    """There is nothing to do beside the commands of the page."""


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """How the page of an alert is played.

    Attributes:
        lab: arguments of the lab; pages with the same ones share it.
        fault: brings the lab into the state that the alert is about.
        repair: what the page asks people to do without a command: repair hardware, change a pod.
    """

    lab: tuple[str, ...]
    fault: Play
    repair: Play = nothing


#: Two nodes with two whole cards each.
CARDS = ("--mig-config", "", "--nodes", "2xH100-80GB,2xH100-80GB")


def stateful(name: str, namespace: str, limits: Mapping[str, int], **spec: Any) -> Any:
    """A namespace with a StatefulSet of one pod, whose name is ``NAME-0`` as long as it lives."""
    container = {"name": "main", "image": "busybox", "command": ["sleep", "infinity"], "resources": {"limits": limits}}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }
    return {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
            {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"selector": {"matchLabels": {"app": name}}, "serviceName": name, "template": template},
            },
        ],
    }


def broken_card(fault: str) -> Play:
    """Card node-1/0, which pod research/train-0 holds, has a fault."""

    def play(lab: RunningLab) -> None:
        lab.kubectl("cordon", "node-2")
        lab.kubectl("apply", "-f", "-", manifest=stateful("train", "research", {"nvidia.com/gpu": 2}))
        lab.kubectl("rollout", "status", "-n", "research", "statefulset/train", "--timeout=180s")
        lab.kubectl("uncordon", "node-2")
        lab.tessera("lab", "break", "gpu", "node-1/0", "--fault", fault, "--dir", str(lab.folder))

    return play


def agent_kept_off(lab: RunningLab) -> None:
    """A value of the chart that excludes node-1."""
    lab.helm(
        *("upgrade", "tessera", "charts/tessera", "-n", "kube-system", "--reset-then-reuse-values"),
        *("--set", "tessera.agent.nodeSelector.kubernetes\\.io/hostname=node-2"),
    )


DRILLS: Mapping[str, Drill] = {
    "TesseraGpuUnhealthy": Drill(lab=CARDS, fault=broken_card("ecc")),
    "TesseraCardNeedsReboot": Drill(lab=CARDS, fault=broken_card("lost")),
    "TesseraAgentSilent": Drill(lab=CARDS, fault=agent_kept_off),
}
#: Alerts whose pages have no drill yet.
WITHOUT_DRILL = frozenset(
    {
        "TesseraConditionFalse",
        "TesseraContainersWithoutSlice",
        "TesseraDriverRolloutStopped",
        "TesseraFragmented",
        "TesseraGpuHot",
        "TesseraGpuIdleButHeld",
        "TesseraGpuMemoryNearlyFull",
        "TesseraGpuThrottled",
        "TesseraHealthBreakerOpen",
        "TesseraNextKernelWithoutDriver",
        "TesseraNoLeader",
        "TesseraNodesOverdue",
        "TesseraPodMemoryNearLimit",
        "TesseraPodStarving",
        "TesseraProvisioningLoop",
    }
)
