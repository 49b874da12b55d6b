"""The fault of each alert in a lab, as its page in ``docs/runbooks/`` finds it."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import yaml
from tests.support.running_lab import ROOT, RunningLab

Play = Callable[[RunningLab], object]


def nothing(_lab: RunningLab) -> None:
    """There is nothing to do beside the commands of the page."""


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """How the page of an alert is played.

    Attributes:
        lab: arguments of the lab; pages with the same ones share it.
        fault: brings the lab into the state that the alert is about.
        repair: what the page asks people to do without a command: repair hardware, change a pod.
        is_long: only `make soak` plays it: it takes half a minute, or other pages have its commands.
    """

    lab: tuple[str, ...]
    fault: Play
    repair: Play = nothing
    is_long: bool = False


#: Two nodes with two whole cards each.
CARDS = ("--mig-config", "", "--nodes", "2xH100-80GB,2xH100-80GB")


#: Two nodes with two cards each that are cut on demand.
SLICES = ("--nodes", "2xA100-40GB,2xA100-40GB")

#: A group of new nodes, one such group of its own, and two nodes; their drivers come from the lab's registries.
NEW_NODES = ("--drivers", "--idle-time", "300", "--nodes", "0", "--group", "gpu=1xT4:0-3")
LOST_NODES = ("--drivers", "--idle-time", "600", "--nodes", "0", "--group", "gpu=1xT4:0-9")
DRIVERS = ("--drivers", "--nodes", "2*T4")
POLICY = yaml.safe_load((ROOT / "examples" / "drivers" / "cluster-policy.yaml").read_text(encoding="utf-8"))
#: The lab's registries have both drivers, and the first one hangs.
HANGING, GOOD = "535.129.03", "535.104.05"


def stateful(name: str, namespace: str, limits: Mapping[str, int], replicas: int = 1) -> Any:
    """A namespace with a StatefulSet, whose first pod is always called ``NAME-0``."""
    container = {"name": "main", "image": "busybox", "command": ["sleep", "infinity"], "resources": {"limits": limits}}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
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
                "spec": {
                    "selector": {"matchLabels": {"app": name}},
                    "serviceName": name,
                    "replicas": replicas,
                    "template": template,
                },
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
        lab.apply(stateful(name, "research", limits))
        lab.kubectl("rollout", "status", "-n", "research", f"statefulset/{name}", "--timeout=180s")
        lab.kubectl("uncordon", *others)

    return play


def waiting(name: str, limits: Mapping[str, int], replicas: int = 1) -> Play:
    """Pods of this kind are wanted, and nobody waits for them."""
    return lambda lab: lab.apply(stateful(name, "research", limits, replicas))


def cordoned(node: str) -> Play:
    """A node takes no new pods."""
    return lambda lab: lab.kubectl("cordon", node)


def opened(node: str) -> Play:
    """A node takes pods again."""
    return lambda lab: lab.kubectl("uncordon", node)


def scattered(lab: RunningLab) -> None:
    """Of many small slices of node-1 one is left on each card, one of them of pod research/small-0."""
    fill = [lab.pod(f"fill-{n}", {"nvidia.com/mig-1g.5gb": 1}) for n in range(7)]
    lab.apply({"apiVersion": "v1", "kind": "List", "items": fill})
    names = [f"pod/{each['metadata']['name']}" for each in fill]
    lab.kubectl("wait", *names, "--for=condition=Ready", "--timeout=180s")
    held("node-1", "small", {"nvidia.com/mig-1g.5gb": 1})(lab)
    lab.kubectl("delete", *names[1:])


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
        *("upgrade", "tessera", "charts/tessera", "-n", "tessera-system", "--reset-then-reuse-values"),
        *("--set", "tessera.agent.nodeSelector.kubernetes\\.io/hostname=node-2"),
    )


def driver(version: str, **settings: Any) -> Play:
    """The policy asks for a version of the driver."""
    spec = {"driver": {**POLICY["spec"]["driver"], "version": version, **settings}}
    return lambda lab: lab.apply({**POLICY, "spec": spec})


def lose_nodes(lab: RunningLab) -> None:
    """Nodes whose driver hangs, which something removes again and again."""
    driver(HANGING)(lab)
    waiting("train", {"nvidia.com/gpu": 1})(lab)
    for _ in range(3):
        lab.kubectl("delete", "node", lab.eventually(lambda: new_node(lab)))
    lab.eventually(lambda: new_node(lab))


def new_node(lab: RunningLab) -> str:
    """A node of the group after ten more minutes; empty if there is none."""
    later(10)(lab)
    names = [each["metadata"]["name"] for each in lab.get("nodes")["items"]]
    return next((name for name in names if name.startswith("gpu-")), "")


def next_kernel(lab: RunningLab) -> None:
    """The nodes will boot a kernel for which no driver was built."""
    data = {"rhcos4.13": "5.14.0-999.1.1.el9_2.x86_64"}
    head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "driver-next-kernels"}}
    lab.apply({**head, "data": data}, "tessera-system")


PROFILE = "nvidia.com/device-plugin.config"
TRAIN = held("node-1", "train", {"nvidia.com/gpu": 2})

DRILLS: Mapping[str, Drill] = {
    "TesseraGpuUnhealthy": Drill(lab=CARDS, fault=all_of(TRAIN, broken("node-1/0", fault="ecc"))),
    "TesseraCardNeedsReboot": Drill(lab=CARDS, fault=all_of(TRAIN, broken("node-1/0", fault="lost"))),
    "TesseraGpuThrottled": Drill(
        lab=CARDS, fault=all_of(broken("node-1/0", fault="power"), later(2)), repair=mended("node-1/0")
    ),
    "TesseraGpuHot": Drill(
        lab=CARDS,
        fault=all_of(broken("node-1/0", fault="heat"), later(2)),
        repair=mended("node-1/0"),
        is_long=True,
    ),
    "TesseraGpuMemoryNearlyFull": Drill(
        lab=CARDS,
        fault=all_of(held("node-2", "server", {"nvidia.com/gpu": 1}), full("server", "79Gi")),
        is_long=True,
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
        is_long=True,
    ),
    "TesseraContainersWithoutSlice": Drill(
        lab=SLICES,
        fault=all_of(
            cordoned("node-2"),
            broken("node-1/0", "node-1/1", fault="no-slices"),
            waiting("api", {"nvidia.com/mig-1g.5gb": 1}),
            later(1),
            opened("node-2"),
        ),
        repair=all_of(mended("node-1/0"), mended("node-1/1")),
    ),
    "TesseraPodStarving": Drill(
        lab=SLICES,
        fault=all_of(cordoned("node-2"), waiting("large", {"nvidia.com/mig-7g.40gb": 1}, 3), later(1)),
    ),
    "TesseraFragmented": Drill(
        lab=SLICES,
        fault=all_of(
            cordoned("node-2"), scattered, cordoned("node-2"), waiting("large", {"nvidia.com/mig-7g.40gb": 1})
        ),
    ),
    "TesseraNodesOverdue": Drill(
        lab=NEW_NODES,
        fault=all_of(driver(HANGING), waiting("train", {"nvidia.com/gpu": 1}), later(17)),
        is_long=True,
    ),
    "TesseraProvisioningLoop": Drill(lab=LOST_NODES, fault=lose_nodes, is_long=True),
    "TesseraDriverRolloutStopped": Drill(
        lab=DRIVERS,
        fault=all_of(driver(GOOD), later(5), driver(HANGING, upgradePolicy={"autoUpgrade": True}), later(30)),
        is_long=True,
    ),
    "TesseraNextKernelWithoutDriver": Drill(lab=DRIVERS, fault=all_of(driver(GOOD), later(5), next_kernel)),
}
