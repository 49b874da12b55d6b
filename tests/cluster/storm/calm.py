"""The end of a storm: people put right what they changed, and then everything must come right by itself.

1. Every node serves with the driver that the policy asks for.
2. Nothing is left of upgrades: no cordon of ours, no pause, no node between two drivers, no set without a node. All
   policies are told to be ready, and whoever waited for a card has one.
3. Nobody writes anything for ten minutes.
4. Another version reaches every node, too, but one that a person cordoned and that pods use: that stays as it is, and
   holds up nobody.
"""

from collections import Counter
from collections.abc import Iterator

from tests.cluster.storm.people import (
    BUDGET,
    BUDGETS,
    DEFAULT_DRIVER,
    DRIVERS,
    SECOND,
    SWITCHES,
    apply_driver,
    driver,
    good_policy,
)
from tests.cluster.storm.scene import Scene
from tests.cluster.storm.world import VERSIONS, branch

from tessera.api.nodes.node_marks import (
    DRIVER_CONDITION,
    DRIVER_SET_LABEL,
    PAUSE_LABEL,
    PAUSED,
    UPGRADE_STATE_LABEL,
    DriverPhase,
)
from tessera.driver.driver_sets import APP_LABEL
from tessera.driver.node_facts import (
    CHANGING,
    INITIAL_ANNOTATION,
    RECORD_ANNOTATION,
    REQUESTED_ANNOTATION,
    UpgradeState,
    parse_upgrade_record,
    parse_upgrade_state,
)
from tessera.driver.rollout.node_view import PULL_APP
from tessera.gpu_operator.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.kube.resources import PODS, Node

#: Simulated seconds: until all serve, after that until all rests, and in which nobody writes then.
COMES_RIGHT, RESTS, QUIET = 14_400.0, 1_800.0, 600.0
_LOOKS = 300.0


async def put_right(s: Scene) -> None:
    """Takes the changes of people and tenants back."""
    s.story.note("CALM")
    for pattern in s.refused:
        s.registries.allow(pattern)
    for name, image in s.images.items():
        s.registries.push(name, image)
    for path in s.spoiled:
        if path.is_symlink():
            path.unlink()
        elif path.is_dir():
            path.rmdir()
    for name in s.nodes:
        await _switch_back(s, name)
    await s.remove(BUDGETS, BUDGET, "default")
    for name in s.tenants:
        await s.remove(PODS, name, "default", grace_seconds=0)
    await s.remove(CLUSTER_POLICIES, SECOND)
    for name in DRIVERS:
        await s.remove(NVIDIA_DRIVERS, name)


async def _switch_back(s: Scene, name: str) -> None:
    seen = s.lab.nodes.cache.get(name)
    marks = seen.metadata.labels if seen is not None else {}
    present = "nvidia.com/gpu.present"
    changed: dict[str, str | None] = {key: None for key in SWITCHES if key in marks and key != present}
    if marks.get(present) != "true":
        changed[present] = "true"
    if changed:
        await s.label(name, **changed)
    if name in s.always.foreign:
        await s.uncordon(name)


async def comes_right(s: Scene) -> None:
    """Under a good policy, or under one whose drivers an NVIDIADriver names, all serve; then all rests."""
    version = s.rng.choice(VERSIONS)
    if s.rng.random() < 0.3:
        spec = driver(s, good=True) | {"version": version, "default": True}
        await apply_driver(s, DEFAULT_DRIVER, spec)
        await good_policy(s, useNvidiaDriverCRD=True)
    else:
        await good_policy(s, version=version)
    for _ in range(2):  # a better way to the same driver may have failed meanwhile, and is asked for again
        await _serve(s, version, s.nodes)
        await s.lab.clock.sleep(RESTS)
    _look_at_rest(s)
    _look_at_workloads(s)
    await _look_at_policies(s)
    await _look_at_writes(s)


async def goes_on(s: Scene) -> None:
    """With one node that a person cordoned, another version reaches all others."""
    kept = s.node()
    await s.cordon(kept)
    version = s.rng.choice([each for each in VERSIONS if each not in {_loaded(s, name) for name in s.nodes}])
    await good_policy(s, version=version)
    await s.remove(NVIDIA_DRIVERS, DEFAULT_DRIVER)
    await _serve(s, version, [name for name in s.nodes if name != kept])
    await s.lab.clock.sleep(RESTS)
    _look_at_rest(s, kept)


async def _serve(s: Scene, version: str, names: list[str]) -> None:
    """Waits until nodes serve with a version; a person asks again for nodes on which it failed before."""
    for _ in range(int(COMES_RIGHT / _LOOKS)):
        await s.lab.clock.sleep(_LOOKS)
        missing = [name for name in names if not _is_right(s, name, version)]
        if not missing:
            return
        for name in missing:
            await _ask_again(s, name)
    for name in missing:
        s.story.problem(f"{name} does not serve with {version}: {_account(s, name)}")


def _is_right(s: Scene, name: str, version: str) -> bool:
    """True if a node serves with a version, and nothing about it has failed."""
    return not _has_failed(s, name) and s.lab.serves(name) and _loaded(s, name) in {version, branch(version)}


def _has_failed(s: Scene, name: str) -> bool:
    """True if a node is not there, or it is told of a failure: also of a better way to the version that it has."""
    seen, told = s.lab.nodes.cache.get(name), s.lab.told(name)
    if seen is None or seen.metadata.labels.get(UPGRADE_STATE_LABEL) == UpgradeState.FAILED.value:
        return True
    return told is not None and "failed" in told.reason


async def _ask_again(s: Scene, name: str) -> None:
    """A request is tried whatever failed before."""
    seen, told = s.lab.nodes.cache.get(name), s.lab.told(name)
    if seen is None or told is None or REQUESTED_ANNOTATION in seen.metadata.annotations:
        return
    if s.lab.serves(name) and _has_failed(s, name):
        await s.annotate(name, REQUESTED_ANNOTATION, "true")


def _loaded(s: Scene, name: str) -> str | None:
    machine = s.lab.cluster.nodes[name].machine
    return machine.loaded_driver if machine is not None else None


def _account(s: Scene, name: str) -> str:
    """Describes the state of a node."""
    told, seen = s.lab.told(name), s.lab.nodes.cache.get(name)
    what = f"{told.phase.value}, set {told.set}: {told.reason}" if told is not None else "is told nothing"
    state = seen.metadata.labels.get(UPGRADE_STATE_LABEL, "no state") if seen is not None else "no node"
    return f"{what} [{state}, {_loaded(s, name)} is loaded, offers {s.lab.gpus(name)}]"


def _look_at_rest(s: Scene, kept: str = "") -> None:
    """Nothing of the storm is left, but on a node that a person keeps."""
    for node in s.lab.nodes.cache.values():
        if node.metadata.name != kept:
            for what in _left_over(s, node):
                s.story.problem(f"{node.metadata.name} {what}: {_account(s, node.metadata.name)}")
    used = {node.metadata.labels.get(DRIVER_SET_LABEL) for node in s.lab.nodes.cache.values()}
    offered = any((told := s.lab.told(name)) and told.offered for name in s.nodes)
    for made in s.lab.driver_sets:
        if made.id not in used and not kept and not offered:
            s.story.problem(f"driver set {made.id} is left, and no node has it")
    for pod in s.lab.own_pods.cache.values():
        if pod.metadata.labels.get(APP_LABEL) == PULL_APP and pod.spec.node_name != kept:
            s.story.problem(f"pod {pod.metadata.name}, which brought an image, is left")


def _left_over(s: Scene, node: Node) -> Iterator[str]:
    name, marks, notes = node.metadata.name, node.metadata.labels, node.metadata.annotations
    if marks.get(PAUSE_LABEL) == PAUSED:
        yield "is left paused"
    if marks.get(DRIVER_SET_LABEL) == CHANGING:
        yield "is left between two drivers"
    if node.spec.unschedulable and name not in s.always.foreign:
        yield "is left cordoned"
    told = s.lab.told(name)
    waits = {UpgradeState.REQUIRED} if told is not None and told.offered else set()  # for pods that use its cards
    if parse_upgrade_state(marks.get(UPGRADE_STATE_LABEL, "")) not in {UpgradeState.NONE, UpgradeState.DONE} | waits:
        yield "is left in an upgrade"
    if parse_upgrade_record(notes.get(RECORD_ANNOTATION, "")) is not None:
        yield f"is left with the record {notes[RECORD_ANNOTATION]}"
    for key in sorted({REQUESTED_ANNOTATION, INITIAL_ANNOTATION} & notes.keys()):
        yield f"is left with annotation {key}={notes[key][:200]}"
    if s.lab.condition(DRIVER_CONDITION, name)[0] != "True":
        yield f"is left with condition {s.lab.condition(DRIVER_CONDITION, name)}"


async def _look_at_policies(s: Scene) -> None:
    """Each policy is told to be ready."""
    for resource in (CLUSTER_POLICIES, NVIDIA_DRIVERS):
        for each in (await s.client.list(resource)).items:
            status = each.get("status") or {}
            if status.get("state") != "ready":
                s.story.problem(f"{resource.kind} {each['metadata']['name']} is told {str(status)[:600]}")


def _look_at_workloads(s: Scene) -> None:
    """Cards are used while somebody waits for one."""
    working = [pod for pod in s.lab.pods.cache.values() if pod.metadata.labels.get("app") in s.workloads]
    running = [pod for pod in working if pod.status.phase == "Running"]
    if len(running) < min(len(s.workloads), len(s.nodes)):
        states = {pod.metadata.name: (pod.status.phase, pod.spec.node_name) for pod in working}
        s.story.problem(f"{len(running)} of {len(s.workloads)} workloads run on {len(s.nodes)} cards: {states}")


async def _look_at_writes(s: Scene) -> None:
    """Leases of leaders are renewed all the time; nothing else has a reason."""
    s.always.look_at_evictions()
    await s.lab.clock.sleep(QUIET)
    audit = s.lab.cluster.server.audit
    written = Counter(
        f"{each.user.rpartition(':')[2]} {each.verb} {each.resource} {each.subresource} {each.name}"
        for each in audit.writes()
        if "tessera" in each.user and each.resource != "leases.coordination.k8s.io"
    )
    for what, count in written.items():
        s.story.problem(f"written {count} times while all rests: {what}")


def _decides(s: Scene) -> bool:
    """True if a controller runs; while people keep all nodes out of service none can."""
    return any(
        pod.metadata.labels.get("app.kubernetes.io/name") == "tessera-controller" and pod.status.phase == "Running"
        for pod in s.lab.own_pods.cache.values()
    )


def look_at_round(s: Scene) -> None:
    """Checks the rules for a cluster half an hour after the last change."""
    if not s.governed or not _decides(s):
        return
    made = {each.id: each for each in s.lab.driver_sets}
    for name, node in s.lab.cluster.nodes.items():
        seen, told = s.lab.nodes.cache.get(name), s.lab.told(name)
        if seen is None or told is None:
            continue
        label = seen.metadata.labels.get(DRIVER_SET_LABEL, "")
        if label in made and made[label].pool.kernel != node.kernel:
            s.story.problem(f"{name} runs {node.kernel}, its driver set is for {made[label].pool.text}")
        if told.phase is not DriverPhase.READY and not told.reason:
            s.story.problem(f"{name} is told no reason: {_account(s, name)}")
        if label not in {"", CHANGING, told.set}:
            s.story.problem(f"{name} is told of set {told.set}, and has the label of {label}")
        if s.lab.gpus(name) and _loaded(s, name) is None:
            s.story.problem(f"{name} offers cards without a driver: {_account(s, name)}")
