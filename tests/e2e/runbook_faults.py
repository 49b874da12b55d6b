"""The fault of each alert in a lab, as its page in ``docs/runbooks/`` finds it."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from tests.support.running_lab import RunningLab

Play = Callable[[RunningLab], object]


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


def broken(*cards: str, fault: str = "", xid: int = 0) -> Play:
    """These cards have a fault, or report an XID."""
    what = ("--fault", fault) if fault else ("--xid", str(xid))

    def play(lab: RunningLab) -> None:
        for card in cards:
            lab.tessera("lab", "break", "gpu", card, *what, "--dir", str(lab.folder))

    return play


def mended(card: str) -> Play:
    """A card is repaired."""
    return lambda lab: lab.tessera("lab", "mend", "gpu", card, "--dir", str(lab.folder))


def held(node: str, name: str, limits: Mapping[str, int]) -> Play:
    """A node's cards are held by pod research/NAME-0, which may go to other nodes later."""

    def play(lab: RunningLab) -> None:
        others = [each["metadata"]["name"] for each in lab.get("nodes")["items"] if each["metadata"]["name"] != node]
        lab.kubectl("cordon", *others)
        lab.kubectl("apply", "-f", "-", manifest=stateful(name, "research", limits))
        lab.kubectl("rollout", "status", "-n", "research", f"statefulset/{name}", "--timeout=180s")
        lab.kubectl("uncordon", *others)

    return play


def full(name: str, size: str) -> Play:
    """Pod research/NAME-0 holds so much memory of each of its devices."""
    return lambda lab: lab.tessera("lab", "use-memory", f"{name}-0", size, "-n", "research", "--dir", str(lab.folder))


def later(minutes: int) -> Play:
    """So much time passes."""
    return lambda lab: lab.pass_time(60 * minutes)


def labelled(node: str, label: str) -> Play:
    """A node gets or loses a label."""
    return lambda lab: lab.kubectl("label", "node", node, label, "--overwrite")


def all_of(*plays: Play) -> Play:
    """One after the other."""

    def play(lab: RunningLab) -> None:
        for each in plays:
            each(lab)

    return play


def without_controller(lab: RunningLab) -> None:
    """Somebody scaled the controller to nothing."""
    lab.kubectl("scale", "-n", "tessera-system", "deployment/tessera-controller", "--replicas=0")
    lab.kubectl("wait", "-n", "tessera-system", "deployment/tessera-controller", "--for=jsonpath={.spec.replicas}=0")


def agent_kept_off(lab: RunningLab) -> None:
    """A value of the chart that excludes node-1."""
    lab.helm(
        *("upgrade", "tessera", "charts/tessera", "-n", "kube-system", "--reset-then-reuse-values"),
        *("--set", "tessera.agent.nodeSelector.kubernetes\\.io/hostname=node-2"),
    )


PROFILE = "nvidia.com/device-plugin.config"
TRAIN = held("node-1", "train", {"nvidia.com/gpu": 2})

DRILLS: Mapping[str, Drill] = {
    "TesseraGpuUnhealthy": Drill(lab=CARDS, fault=all_of(TRAIN, broken("node-1/0", fault="ecc"))),
    "TesseraCardNeedsReboot": Drill(lab=CARDS, fault=all_of(TRAIN, broken("node-1/0", fault="lost"))),
    "TesseraGpuThrottled": Drill(
        lab=CARDS, fault=all_of(broken("node-1/0", fault="power"), later(2)), repair=mended("node-1/0")
    ),
    "TesseraGpuHot": Drill(
        lab=CARDS, fault=all_of(broken("node-1/0", fault="heat"), later(2)), repair=mended("node-1/0")
    ),
    "TesseraGpuMemoryNearlyFull": Drill(
        lab=CARDS, fault=all_of(held("node-2", "server", {"nvidia.com/gpu": 1}), full("server", "79Gi"))
    ),
    "TesseraGpuIdleButHeld": Drill(
        lab=CARDS, fault=all_of(held("node-2", "notebook", {"nvidia.com/gpu": 1}), later(15))
    ),
    "TesseraPodMemoryNearLimit": Drill(
        lab=CARDS,
        fault=all_of(
            labelled("node-2", f"{PROFILE}=slice-4"),
            held("node-2", "hog", {"nvidia.com/gpu.shared": 1}),
            full("hog", "30Gi"),
        ),
    ),
    "TesseraConditionFalse": Drill(lab=CARDS, fault=labelled("node-1", f"{PROFILE}=shares-4")),
    "TesseraAgentSilent": Drill(lab=CARDS, fault=agent_kept_off),
    "TesseraNoLeader": Drill(lab=CARDS, fault=without_controller),
    "TesseraHealthBreakerOpen": Drill(
        lab=CARDS,
        fault=all_of(
            TRAIN,
            held("node-2", "serve", {"nvidia.com/gpu": 2}),
            broken("node-1/0", "node-1/1", "node-2/0", "node-2/1", xid=119),
        ),
        repair=all_of(*map(mended, ("node-1/0", "node-1/1", "node-2/0", "node-2/1"))),
    ),
}
#: Alerts whose pages have no drill yet.
WITHOUT_DRILL = frozenset(
    {
        "TesseraContainersWithoutSlice",
        "TesseraDriverRolloutStopped",
        "TesseraFragmented",
        "TesseraNextKernelWithoutDriver",
        "TesseraNodesOverdue",
        "TesseraPodStarving",
        "TesseraProvisioningLoop",
    }
)
