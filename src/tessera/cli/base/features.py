"""The features that can be left out: satellites around a core that imports none of them.

The core makes slices, shares cards, cuts layouts, watches health, publishes labels and metrics, and orders the queue.
It is every folder that no row names. A satellite talks to it through published objects, or joins the controller's
process (:mod:`tessera.controller.satellite`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A satellite.

    Attributes:
        name: its name in options.
        folders: its folders, or files, from the root of the source.
        text: what it does, a sentence.
        off: how it is left out.
        joins: it is a part of the controller's process, and its option ``--without NAME`` leaves it out.
    """

    name: str
    folders: tuple[str, ...]
    text: str
    off: str
    joins: bool = False


FEATURES = (
    Feature(
        name="provisioning",
        folders=("src/tessera/provisioning",),
        text="Follows each new node until its cards can be used, removes startup taints, and advises autoscalers.",
        off="`tessera controller --without provisioning`",
        joins=True,
    ),
    Feature(
        name="drivers",
        folders=("src/tessera/driver",),
        text="Installs drivers: finds or builds images, and rolls them out.",
        off="`tessera controller --without drivers`",
        joins=True,
    ),
    Feature(
        name="usage",
        folders=("src/tessera/usage",),
        text="Counts GPU-hours by user, namespace and label.",
        off="`tessera controller --without usage`",
        joins=True,
    ),
    Feature(
        name="kueue",
        folders=("src/tessera/kueue",),
        text="Answers Kueue's admission check, and reads Kueue's queues.",
        off="`tessera controller --without kueue`",
        joins=True,
    ),
    Feature(
        name="forecast",
        folders=("src/tessera/forecast",),
        text="Publishes each waiting pod's position, reason and expected start.",
        off="`tessera controller --without forecast`",
        joins=True,
    ),
    Feature(
        name="signals",
        folders=("src/tessera/signals",),
        text="Tells scalers of services their load, and the replicas that still fit.",
        off="`tessera controller --without signals`; agents ask pods with `prometheus.io/scrape` alone",
        joins=True,
    ),
    Feature(
        name="handover",
        folders=("src/tessera/handover",),
        text="Keeps slots for the next pods of owners and services, and hands them over in updates.",
        off="`tessera controller --without handover`",
        joins=True,
    ),
    Feature(
        name="scale-up",
        folders=("src/tessera/scale_up",),
        text="Asks autoscalers for the new nodes that waiting pods need.",
        off="`tessera controller --without scale-up`",
        joins=True,
    ),
    Feature(
        name="claims",
        folders=("src/tessera/claims", "src/tessera/dra", "src/tessera/cel"),
        text="Gives slices and whole cards by ResourceClaims.",
        off="`tessera controller --without claims`; agents without `--claim-driver`",
        joins=True,
    ),
    Feature(
        name="memory-limits",
        folders=("src/tessera/memory_limits",),
        text="Watches the memory of shared cards, and acts on pods that take more than their share.",
        off="agents with `--memory-limits off`",
    ),
    Feature(
        name="nvidia",
        folders=("src/tessera/gpu_operator",),
        text="Reads ClusterPolicies, NVIDIADrivers and the values of NVIDIA's charts.",
        off="leave out drivers and provisioning, and run no command",
    ),
    Feature(
        name="page",
        folders=("src/tessera/dashboard", "web"),
        text="Shows the live page, and to each visitor only what that visitor may see.",
        off="`tessera install --no-dashboard`",
    ),
    Feature(
        name="commands",
        folders=("src/tessera/cli", "src/tessera/explain", "src/tessera/observe"),
        text="Starts each process, and answers administrators and users from published objects and pages.",
        off="run no command: no process waits for one",
    ),
    Feature(
        name="simulation",
        folders=("src/tessera/nvml/simulated", "src/tessera/agent/simulated.py"),
        text="Gives an agent simulated cards, so that it runs where there is no GPU; the lab has its cards from it.",
        off="start each agent without `--simulate`, as a DaemonSet does",
    ),
    Feature(
        name="checks",
        folders=("src/tessera/doctor", "src/tessera/accept"),
        text="Tests a cluster before an installation, and a machine or a card before it gets work.",
        off="run no check, and set no preflight in the file of repairs",
    ),
    Feature(
        name="olm",
        folders=("bundle",),
        text="Packs the same objects for the Operator Lifecycle Manager.",
        off="install in another form",
    ),
)

#: The satellites in the controller's process, in the order in which they start.
JOINING = tuple(each for each in FEATURES if each.joins)
