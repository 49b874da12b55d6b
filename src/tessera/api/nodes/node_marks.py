"""Marks on a Node: the status of its driver, its agent's conditions, cards out of service, and Tessera's removal.

The controller writes the driver's status; ``tessera driver status``, ``tessera why node/…`` and the provisioning
records read it.

A silent agent cannot take back what it said, so the controller sets its conditions to ``Unknown``, as Kubernetes does
with kubelet's: there, reason ``NodeStatusUnknown`` and message "Kubelet stopped posting node status.". The controller
writes as the agent's own field manager. So the agent's next write takes every field over, and a condition that a later
agent no longer has disappears with it. Kubelet reports for every pod if it is ready, at once when a container ends and
after each failed probe. So an agent's own pod is its heartbeat, and costs the API server no extra writes.

``tessera.dev/cordon.GPU-…`` with the reason as its value takes a card out of service. The key has the card's UUID,
since an index may change. Each card has an annotation of its own, so that two people who cordon two cards at once do
not overwrite each other, and so that ``kubectl annotate`` is enough. The node's agent reads it in the watch of its own
Node, and writes none.

By two annotations ``tessera uninstall`` and the node's agent agree that Tessera leaves the node (docs/remove.md).
``tessera.dev/removal``, by the command: the request. The agent takes devices back from kubelet, frees its cards,
removes its files, and does not begin again while the annotation is there. ``tessera.dev/removed``, by the agent: the
answer. The command removes both at the end.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Annotated, Any

import msgspec

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.kube.resources import Condition, Node, Pod
from tessera.limits import CONDITION_MESSAGE, CORDON_REASON, NODE_CARDS
from tessera.text import one_line

#: Annotation of a node: a :class:`DriverStatus` as JSON. The other annotations about drivers that Tessera brings begin
#: with the same name.
DRIVER_ANNOTATION = "tessera.dev/driver"
#: Condition of a node: its driver is the wanted one and answers.
DRIVER_CONDITION = "GpuDriverReady"
#: Condition of a node, set by its agent: the node's allocatable shows the cards; False while the agent waits for a
#: driver or releases one.
ADVERTISED_CONDITION = "GpuNodeReady"
#: Reason while kubelet has the cards and its status does not show them yet; the agent has the driver open.
WAITING_FOR_KUBELET = "WaitingForKubelet"
#: Annotation of a node, set by its agent: the version of the host's own driver, while that is the one in use. It stays
#: while the agent is away or waits, and goes when the agent uses the driver of a container.
HOST_DRIVER_ANNOTATION = "tessera.dev/host-driver"
#: Reasons of :data:`ADVERTISED_CONDITION` with which an agent says that it has no driver open.
WITHOUT_OPEN_DRIVER = frozenset({"WaitingForDriver", "PausedForDriver", "StateOfNewerVersion"})
#: Seconds for which nodes wait for the one build of their kernel's image before they build for themselves; also the
#: longest time for which a startup deadline is suspended. NVIDIA's CI takes about 19 min for a build.
BUILD_TIMEOUT = 2400.0
#: Label of a node: the driver set whose DaemonSet runs on it.
DRIVER_SET_LABEL = "tessera.dev/driver-set"

#: Labels of pods that this project runs on nodes.
AGENT_APP = "tessera-agent"
DRIVER_APP = "tessera-driver"
TOOLKIT_APP = "tessera-container-toolkit"
VALIDATION_APP = "tessera-validation"

#: Label of a node that NVIDIA's operator and driver manager set during a driver replacement; GPU users must stop.
PAUSE_LABEL = "nvidia.com/gpu.deploy.device-plugin"
PAUSED = "paused-for-driver-upgrade"

#: Label of a node with the state of its upgrade; the values are upstream's.
UPGRADE_STATE_LABEL = "nvidia.com/gpu-driver-upgrade-state"
UPGRADE_SKIP_LABEL = "nvidia.com/gpu-driver-upgrade.skip"
DRAIN_SKIP_LABEL = "nvidia.com/gpu-driver-upgrade-drain.skip"

#: Folder on the node in which parts of the stack show that they are ready; folder and names are upstream's.
MARKER_FOLDER = "/run/nvidia/validations"
DRIVER_CONTAINER_READY = ".driver-ctr-ready"
DRIVER_READY = "driver-ready"
TOOLKIT_READY = "toolkit-ready"
CUDA_READY = "cuda-ready"
PLUGIN_READY = "plugin-ready"


class DriverStrategy(Enum):
    """Ways in which a node gets its driver, best first."""

    PREINSTALLED = "pre-installed"
    PRECOMPILED = "precompiled"
    PRECOMPILED_BRANCH = "precompiled-branch"
    MIRROR = "mirror"
    BUILT = "built"
    BLOCKED = "blocked"


class DriverPhase(Enum):
    """Progress of a node's driver."""

    WAITING = "waiting"  # for facts about the node, or a registry's answer
    PULLING = "pulling"
    STARTING = "starting"  # loads, or builds and loads
    READY = "ready"
    UPGRADING = "upgrading"
    FAILED = "failed"
    BLOCKED = "blocked"


class RejectedStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """A better strategy that was rejected, and the reason."""

    strategy: DriverStrategy
    reason: str


class DriverStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node's driver.

    Attributes:
        strategy: the way in which the node gets it.
        image: the image by digest; empty if there is none.
        tag: the tag that was found.
        version: the version or branch that was requested of this driver.
        wanted: the driver that the policy names now, while the node has another; empty if it has the wanted one.
        pool: the node's pool, as text.
        set: the driver set's id.
        phase: its progress.
        since: RFC 3339, when the phase began.
        reason: one sentence: why this strategy, or the awaited event.
        rejected: better strategies, best first.
        leaving: no policy asks for the driver any more; it is removed when the pods that use it have ended.
        offered: a better strategy that has become possible; taken when the node is idle or reboots.
        boot: the node's boot in which Tessera found all this.
        proven: the boot in which a driver was last proven to work; empty if none ever was.
    """

    strategy: DriverStrategy
    phase: DriverPhase
    since: str
    image: str = ""
    tag: str = ""
    version: str = ""
    wanted: str = ""
    pool: str = ""
    set: str = ""
    reason: str = ""
    rejected: tuple[RejectedStrategy, ...] = ()
    leaving: bool = False
    offered: str = ""
    boot: str = ""
    proven: str = ""

    @property
    def serves(self) -> bool:
        """True if a driver works on the node, be it the wanted one or not."""
        return self.phase is DriverPhase.READY

    @property
    def outdated(self) -> str:
        """The difference if a driver works and the policy names another one; empty if there is none."""
        if not self.serves or not self.wanted:
            return ""
        return f"The policy names {self.wanted}, the node has {self.version or self.image}."

    @property
    def text(self) -> str:
        """The reason, after the difference to the wanted driver."""
        return f"{self.outdated} {self.reason}".strip()

    @property
    def shared(self) -> bool:
        """True if the status is about the pool: another node of the pool would get the same."""
        return self.strategy is DriverStrategy.BLOCKED and bool(self.pool)

    @property
    def awaits_shared(self) -> bool:
        """True if it waits for an event that the whole pool waits for: the one build, a registry's answer."""
        return self.shared and self.phase is DriverPhase.WAITING


#: DaemonSet of the agents. This owner makes a pod an agent: every user may set the label, but only a user with rights
#: in Tessera's namespace can create a pod there.
AGENT_DAEMON_SET = ("apps/v1", "DaemonSet", "tessera-agent")


#: Label of the agents' pods, as deploy/ has it; it finds them, and proves nothing.
AGENT_LABEL = ("app.kubernetes.io/name", "tessera-agent")


def has_driver_traces(node: Node) -> bool:
    """True if Tessera has brought a driver to a node, or has said why not, and the marks of that are there."""
    labels, annotations = node.metadata.labels, node.metadata.annotations
    if DRIVER_SET_LABEL in labels or any(each.startswith(DRIVER_ANNOTATION) for each in annotations):
        return True
    return node.status.condition(DRIVER_CONDITION) is not None


def is_agent(pod: Pod) -> bool:
    """True if the agents' DaemonSet made the pod. The label alone proves nothing: any user can set it on a pod."""
    return pod.metadata.namespace == SYSTEM_NAMESPACE and any(
        owner.controller and (owner.api_version, owner.kind, owner.name) == AGENT_DAEMON_SET
        for owner in pod.metadata.owner_references
    )


SHARING, LAYOUT, HEALTH, MPS = "GpuSharingApplied", "GpuMigLayoutApplied", "GpuHealthy", "GpuMpsReady"
#: Every type that an agent may have written while there is a driver.
CARD_CONDITIONS = frozenset({SHARING, LAYOUT, HEALTH, MPS})
#: Field manager of these, and of ``GpuNodeReady``, which an agent writes without a driver too.
CARDS_MANAGER, ADVERTISED_MANAGER = "tessera-agent", "tessera-agent-driver"
#: The types that each of them writes, and all of these.
CONDITIONS_BY_MANAGER = {CARDS_MANAGER: CARD_CONDITIONS, ADVERTISED_MANAGER: frozenset({ADVERTISED_CONDITION})}
AGENT_CONDITIONS = CARD_CONDITIONS | {ADVERTISED_CONDITION}
#: The controller's condition of a node that came up: True once it offers all its GPUs, False if it does not at its
#: deadline. Nobody knows if it still does while its agent is silent. It has a field manager of its own, since other
#: parts of the controller apply conditions to the same nodes.
PROVISIONED, PROVISIONED_MANAGER = "GpuProvisioned", "tessera-provisioning"
#: What becomes ``Unknown`` when an agent is silent, by field manager.
MARKED_BY_MANAGER = CONDITIONS_BY_MANAGER | {PROVISIONED_MANAGER: frozenset({PROVISIONED})}
#: Reason of a condition whose writer is silent; the status is ``Unknown``.
AGENT_STATUS_UNKNOWN = "AgentStatusUnknown"


def is_marked_silent(condition: Condition) -> bool:
    """True if the controller marked a condition since the agent that wrote it is silent."""
    return condition.status == "Unknown" and condition.reason == AGENT_STATUS_UNKNOWN


def mark_silent(shown: Condition, why: str, node: str, now: str) -> dict[str, Any]:
    """The condition of a silent agent, in the form of an apply.

    The time of the last heartbeat stays: it is when the agent last spoke. What was wrong by its last word stays too.

    Args:
        shown: the condition as the Node shows it.
        why: the reason of the silence.
        node: the Node's name.
        now: the present time, RFC 3339.
    """
    before = f". It last said: {shown.message or shown.reason}" if shown.status == "False" else ""
    text = f"Tessera's agent stopped posting the state of the cards: {why}; see tessera why node/{node}{before}"
    found = {
        "type": shown.type,
        "status": "Unknown",
        "reason": AGENT_STATUS_UNKNOWN,
        "message": shown.message if is_marked_silent(shown) else one_line(text, CONDITION_MESSAGE),
        "lastTransitionTime": (shown.last_transition_time if shown.status == "Unknown" else None) or now,
    }
    heartbeat = shown.last_heartbeat_time
    return found if heartbeat is None else {**found, "lastHeartbeatTime": heartbeat}


#: Beginning of the key; the card's UUID follows.
CORDON_PREFIX = "tessera.dev/cordon."
#: ``GPU-`` with NVML's UUID. The name of an annotation has 63 characters at most, so these have 56.
_UUID = re.compile(r"GPU-(?:[0-9a-zA-Z-]{0,51}[0-9a-zA-Z])")


class Cordon(msgspec.Struct, frozen=True, order=True):
    """A card that a person has taken out of service: its UUID, and the reason in one line."""

    gpu: str
    reason: str


def cordon_key(gpu: str) -> str:
    """The key of the annotation that cordons a card."""
    return f"{CORDON_PREFIX}{gpu}"


def read_cordons(annotations: Mapping[str, str]) -> tuple[Cordon, ...]:
    """The cordons of a Node, sorted; the first ones, if there are more than a node may have cards."""
    found = sorted(key for key in annotations if key.startswith(CORDON_PREFIX))
    cards = ((key, key.removeprefix(CORDON_PREFIX)) for key in found)
    return tuple(
        Cordon(gpu, one_line(annotations[key].strip(), CORDON_REASON))
        for key, gpu in islice(((key, gpu) for key, gpu in cards if _UUID.fullmatch(gpu)), int(NODE_CARDS))
    )


#: Most notes of a node's annotation tessera.dev/removed. A node of 16 cards in slices has fewer that stay; the rest is
#: counted.
REMOVAL_NOTES = 64
#: Most characters: one of these notes. It names a card, a slice, a pod and a command.
REMOVAL_NOTE = 400

REMOVAL_ANNOTATION = "tessera.dev/removal"
REMOVED_ANNOTATION = "tessera.dev/removed"


class RemovalRequest(Enum):
    """The treatment of GPU instances that Tessera made and no pod uses."""

    DESTROY = "destroy-slices"
    KEEP = "keep-slices"


def read_request(annotations: Mapping[str, str]) -> RemovalRequest | None:
    """The request on a Node; ``None`` without one. A value that nobody knows destroys nothing."""
    text = annotations.get(REMOVAL_ANNOTATION)
    if text is None:
        return None
    return RemovalRequest.DESTROY if text == RemovalRequest.DESTROY.value else RemovalRequest.KEEP


class RemovalState(Enum):
    """The progress of an agent."""

    WAITING = "waiting"  # pods use something that would end with the agent
    DONE = "done"


class RemovalAnswer(msgspec.Struct, frozen=True):
    """The answer of an agent.

    Attributes:
        state: how far it is.
        notes: for people: what it waits for, or what stays on the node and why.
    """

    state: RemovalState
    notes: Annotated[tuple[str, ...], msgspec.Meta(max_length=int(REMOVAL_NOTES))] = ()


_DECODER = msgspec.json.Decoder(RemovalAnswer)


def make_answer(state: RemovalState, notes: Sequence[str] = ()) -> RemovalAnswer:
    """An answer within its limits; notes beyond them are counted."""
    kept = [one_line(each, int(REMOVAL_NOTE)) for each in notes[: int(REMOVAL_NOTES)]]
    if len(notes) > len(kept):
        kept[-1] = f"and {len(notes) - len(kept) + 1} more"
    return RemovalAnswer(state, tuple(kept))


def encode_answer(answer: RemovalAnswer) -> str:
    """The value of ``tessera.dev/removed``."""
    return msgspec.json.encode(answer).decode()


def read_answer(annotations: Mapping[str, str]) -> RemovalAnswer | None:
    """The answer on a Node; ``None`` if there is none, or none that can be read."""
    text = annotations.get(REMOVED_ANNOTATION, "")
    if not text or len(text) > int(REMOVAL_NOTES) * (6 * int(REMOVAL_NOTE) + 8):
        return None
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
