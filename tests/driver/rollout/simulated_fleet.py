"""A simulated cluster, as much of it as a rollout meets: nodes, pods, DaemonSets' pods, kubelet, agent, people.

Each part moves when it is told to, so that a test can put any order of events between two instructions. Every write of
the controller is checked against what must never happen.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tessera.api.nodes.node_marks import DRIVER_APP, DRIVER_SET_LABEL, PAUSE_LABEL, PAUSED, UPGRADE_STATE_LABEL
from tessera.driver.driver_sets import APP_LABEL
from tessera.driver.node_facts import CHANGING, CORDONED_ANNOTATION, UpgradeState, parse_upgrade_state
from tessera.driver.rollout.candidates import SetFailures, add_failure, encode_failures, read_failures
from tessera.driver.rollout.executor import pull_name
from tessera.driver.rollout.instructions import (
    DeletePull,
    EvictPod,
    ForgetFailures,
    Instruction,
    InstructionOutcome,
    PatchNode,
    PullImage,
    RecordFailure,
)
from tessera.driver.rollout.node_view import MOST_RESTARTS, PULL_APP, PULL_SET_LABEL
from tessera.kube.resources import (
    Condition,
    Container,
    ContainerStatus,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from tessera.kube.resources.meta import Uid
from tessera.kube.resources.pods import ContainerState, ContainerStateTerminated, ContainerStateWaiting

#: What becomes of a driver set: it works, its container ends again and again, its image is nowhere, nothing proves it.
GOOD, CRASHES, NO_IMAGE, NOT_VALIDATED = "good", "crashes", "no image", "not validated"

#: The set that fits nodes which booted into another kernel.
OTHER_KERNEL = "ffffffffff"


@dataclass
class SimPod:
    """A workload's pod; ``blocked`` by a disruption budget that never gives way."""

    uid: str
    blocked: bool = False
    stays: bool = False
    terminating: bool = False
    evictions: int = 0


@dataclass
class SimDriver:
    """A driver pod: ``starting``, ``ready`` or ``crashed``."""

    uid: str
    set: str
    phase: str = "starting"
    terminating: bool = False


@dataclass
class SimNode:
    """A node with everything on it."""

    name: str
    uid: str
    labels: dict[str, str]
    annotations: dict[str, str] = field(default_factory=dict)
    version: int = 1
    unschedulable: bool = False
    cordoned_by: str = ""
    ready: bool = True
    offers: bool = True
    validated: str = ""
    pods: list[SimPod] = field(default_factory=list)
    drivers: list[SimDriver] = field(default_factory=list)
    pulls: dict[str, str] = field(default_factory=dict)  # set -> pulling, present or failed
    moved: bool = False  # booted into another kernel: the rest of the controller gives it another set

    @property
    def set(self) -> str:
        return self.labels.get(DRIVER_SET_LABEL, "")

    @property
    def state(self) -> UpgradeState:
        return parse_upgrade_state(self.labels.get(UPGRADE_STATE_LABEL, ""))

    @property
    def serves(self) -> bool:
        """True if users have a working driver, cards, and no cordon but a person's."""
        works = any(each.set == self.set and each.phase == "ready" and not each.terminating for each in self.drivers)
        return works and self.offers and self.cordoned_by != "us"


class SimulatedFleet:
    """The nodes of a cluster, their drivers and their pods.

    Args:
        names: its nodes, all with the driver set ``first``.
        first: that set.
        sets: what becomes of each set.
        max_parallel: must not be exceeded.
        max_unavailable: likewise.
        manager: NVIDIA's driver manager runs before a driver, which ends the pause of the users of cards by itself.
    """

    def __init__(
        self,
        names: list[str],
        first: str,
        sets: dict[str, str],
        max_parallel: int,
        max_unavailable: int,
        *,
        manager: bool = False,
    ) -> None:
        self.manager = manager
        self.sets = sets
        self.now = 1_800_000_000.0
        self.memory: dict[str, str] = {}
        self.touched: set[str] = set()  # nodes whose driver set was ever changed
        self.violations: list[str] = []
        self._limits = (max_parallel, max_unavailable)
        self._uids = iter(range(10**9))
        self.nodes: dict[str, SimNode] = {}
        for name in names:
            driver = SimDriver(self._uid("driver"), first, "ready")
            labels = {DRIVER_SET_LABEL: first, PAUSE_LABEL: "true"}
            node = SimNode(name, self._uid("node"), labels, validated=driver.uid, drivers=[driver])
            self.nodes[name] = node

    def _uid(self, of: str) -> str:
        return f"{of}-{next(self._uids)}"

    def add_pod(self, node: str, *, blocked: bool = False, stays: bool = False) -> None:
        """A pod that uses cards comes, if the node takes it."""
        found = self.nodes[node]
        if found.ready and found.offers and not found.unschedulable:
            found.pods.append(SimPod(self._uid("pod"), blocked=blocked, stays=stays))

    # The API server

    def execute(self, instruction: Instruction) -> InstructionOutcome:
        """Carries out what the controller asks, and checks it."""
        match instruction:
            case PatchNode():
                answer = self._patch(instruction)
            case EvictPod():
                answer = self._evict(instruction)
            case PullImage(node=name, set=set_):
                if name not in self.nodes or set_ in self.nodes[name].pulls:
                    return InstructionOutcome.REFUSED
                self.nodes[name].pulls[set_] = "pulling"
                answer = InstructionOutcome.DONE
            case DeletePull(uid=uid):
                for node in self.nodes.values():
                    node.pulls = {key: each for key, each in node.pulls.items() if f"{node.uid}/{key}" != uid}
                answer = InstructionOutcome.DONE
            case RecordFailure():
                known = add_failure(
                    self.failures,
                    driver_set=instruction.set,
                    policy=instruction.policy,
                    node=instruction.node,
                    cause=instruction.cause,
                    at=instruction.at,
                )
                self.memory = encode_failures(known)
                answer = InstructionOutcome.DONE
            case ForgetFailures(set=set_):
                self.memory.pop(set_, None)
                answer = InstructionOutcome.DONE
        self._check()
        return answer

    @property
    def failures(self) -> dict[str, SetFailures]:
        """The failures that the controller remembers."""
        return read_failures(self.memory)

    def _patch(self, patch: PatchNode) -> InstructionOutcome:
        node = self.nodes.get(patch.node)
        if node is None or (node.uid, str(node.version)) != (patch.uid, patch.version):
            return InstructionOutcome.OUTDATED
        if patch.without_gpu_pods and any(not pod.stays for pod in node.pods):
            return InstructionOutcome.REFUSED
        if patch.labels.get(DRIVER_SET_LABEL, node.set) != node.set:
            self.touched.add(node.name)
        for kept, changes in ((node.labels, patch.labels), (node.annotations, patch.annotations)):
            for key, value in changes.items():
                if value is None:
                    kept.pop(key, None)
                else:
                    kept[key] = value
        if patch.unschedulable is not None:
            if node.cordoned_by == "person":
                self.violations.append(f"the cordon of {node.name} is a person's: {patch}")
            node.unschedulable = patch.unschedulable
            node.cordoned_by = "us" if patch.unschedulable else ""
        node.version += 1
        return InstructionOutcome.DONE

    def _evict(self, eviction: EvictPod) -> InstructionOutcome:
        node = self.nodes.get(eviction.node)
        pod = next((each for each in node.pods if each.uid == eviction.uid), None) if node is not None else None
        if pod is None:
            return InstructionOutcome.OUTDATED
        if pod.stays:
            self.violations.append(f"{pod.uid} stays, and was evicted")
        if pod.blocked:
            return InstructionOutcome.REFUSED
        pod.evictions += 1
        pod.terminating = True
        if pod.evictions > 1:
            self.violations.append(f"{pod.uid} was evicted twice")
        return InstructionOutcome.DONE

    def _check(self) -> None:
        parallel, unavailable = self._limits
        active = [node.name for node in self.nodes.values() if node.state.active]
        out = [node.name for node in self.nodes.values() if CORDONED_ANNOTATION in node.annotations]
        if len(active) > parallel:
            self.violations.append(f"{active} are under way at a time")
        if len(out) > unavailable:
            self.violations.append(f"{out} are out of service at a time")

    # The other parts

    def daemon_sets(self, node: SimNode) -> None:
        """Driver pods of other sets end; the label's set gets its pod."""
        for driver in node.drivers:
            driver.terminating = driver.terminating or driver.set != node.set
        if node.set not in {"", CHANGING} and not any(each.set == node.set for each in node.drivers):
            if any(each.phase != "crashed" for each in node.drivers):
                self.violations.append(f"two drivers on {node.name}")
            node.drivers.append(SimDriver(self._uid("driver"), node.set))

    def kubelet(self, node: SimNode) -> None:
        """Pods that end are gone, drivers start, images come."""
        if not node.ready:
            return
        node.pods = [pod for pod in node.pods if not pod.terminating]
        node.drivers = [each for each in node.drivers if not each.terminating]
        starts = any(each.phase == "starting" for each in node.drivers)
        if self.manager and starts and node.labels.get(PAUSE_LABEL) == PAUSED:
            node.labels[PAUSE_LABEL] = "true"
            node.version += 1
        for driver in node.drivers:
            driver.phase = "crashed" if self.sets[driver.set] == CRASHES else "ready"
        for key in node.pulls:
            node.pulls[key] = "failed" if self.sets[key] == NO_IMAGE else "present"

    def validator(self, node: SimNode) -> None:
        """Proves a driver that runs."""
        for driver in node.drivers:
            proves = driver.phase == "ready" and not driver.terminating and self.sets[driver.set] != NOT_VALIDATED
            if node.ready and proves and driver.set == node.set:
                node.validated = driver.uid

    def agent(self, node: SimNode) -> None:
        """Lets go of cards when it is asked to or their driver goes; offers them when they were proven."""
        if node.ready:
            proven = any(each.uid == node.validated and each.phase == "ready" for each in node.drivers)
            node.offers = proven and node.labels.get(PAUSE_LABEL) != PAUSED
            node.version += 1

    def reboot(self, node: SimNode) -> None:
        """The node goes away; its pods with it."""
        node.ready, node.offers = False, False
        node.pods = [pod for pod in node.pods if pod.stays]
        for driver in node.drivers:
            driver.phase, driver.uid = "starting", self._uid("driver")
        node.version += 1

    def other_kernel(self, node: SimNode) -> None:
        """It boots into another kernel, for which it needs another set than any that it had."""
        self.reboot(node)
        node.moved = True
        node.pulls = {}

    def planner(self, node: SimNode) -> None:
        """The rest of the controller: nothing serves on a node with another kernel, so it gets its set at once."""
        if not node.moved:
            return
        label = OTHER_KERNEL if not any(each.set != OTHER_KERNEL for each in node.drivers) else CHANGING
        if node.set != label:
            node.labels[DRIVER_SET_LABEL] = label
            node.version += 1
        node.moved = not any(each.set == label for each in node.drivers)

    def comes_up(self, node: SimNode) -> None:
        """The node is there again."""
        node.ready = True
        node.version += 1

    def parts(self) -> tuple[Callable[[SimNode], None], ...]:
        """The parts that move without an instruction."""
        return (self.daemon_sets, self.kubelet, self.validator, self.agent, self.planner)

    # What watches show

    def node_object(self, name: str) -> Node:
        """The node as the API server has it."""
        node = self.nodes[name]
        return Node(
            metadata=ObjectMeta(
                name=name,
                uid=Uid(node.uid),
                resource_version=str(node.version),
                labels=dict(node.labels),
                annotations=dict(node.annotations),
            ),
            spec=NodeSpec(unschedulable=node.unschedulable),
            status=NodeStatus(
                conditions=(Condition(type="Ready", status="True" if node.ready else "Unknown"),),
                allocatable={"nvidia.com/gpu": "8" if node.offers else "0"},
            ),
        )

    def pod_objects(self, name: str) -> tuple[Pod, ...]:
        """The pods on the node as the API server has them."""
        return tuple(self._pods(self.nodes[name]))

    def _pods(self, node: SimNode) -> Iterator[Pod]:
        for pod in node.pods:
            kind = "DaemonSet" if pod.stays else "ReplicaSet"
            yield _pod(pod.uid, "default", {}, kind, terminating=pod.terminating, cards=True)
        for driver in node.drivers:
            labels = {APP_LABEL: DRIVER_APP, DRIVER_SET_LABEL: driver.set}
            waiting = ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff"))
            crashed = ContainerStatus(name="driver", restart_count=MOST_RESTARTS, state=waiting)
            yield _pod(
                driver.uid,
                "tessera-system",
                labels,
                "DaemonSet",
                terminating=driver.terminating,
                status=PodStatus(
                    phase="Running",
                    conditions=(Condition(type="Ready", status="True" if driver.phase == "ready" else "False"),),
                    container_statuses=(crashed,) if driver.phase == "crashed" else (),
                ),
            )
        for set_, how in node.pulls.items():
            labels = {APP_LABEL: PULL_APP, PULL_SET_LABEL: set_}
            ended = ContainerState(terminated=ContainerStateTerminated())
            missing = ContainerState(waiting=ContainerStateWaiting(reason="ErrImageNeverPull"))
            states = {"present": ended, "failed": missing, "pulling": ContainerState()}
            status = PodStatus(
                phase="Succeeded" if how == "present" else "Pending",
                container_statuses=(ContainerStatus(name="pull", state=states[how]),),
            )
            uid = f"{node.uid}/{set_}"
            yield _pod(uid, "tessera-system", labels, "Node", status=status, name=pull_name(node.name, set_))


def _pod(
    uid: str,
    namespace: str,
    labels: dict[str, str],
    owner: str,
    *,
    terminating: bool = False,
    cards: bool = False,
    status: PodStatus | None = None,
    name: str = "",
) -> Pod:
    asked = {"nvidia.com/gpu": "1"} if cards else {}
    return Pod(
        metadata=ObjectMeta(
            name=name or uid,
            namespace=namespace,
            uid=Uid(uid),
            labels=labels,
            creation_timestamp="2027-01-15T08:00:00Z",
            deletion_timestamp="2027-01-15T08:00:00Z" if terminating else None,
            owner_references=(OwnerReference(kind=owner, name="o", controller=owner != "Node"),),
        ),
        spec=PodSpec(containers=(Container(name="c", resources=ResourceRequirements(limits=asked)),)),
        status=status or PodStatus(phase="Running"),
    )
