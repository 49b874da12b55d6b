"""The end of a storm: people put right what they changed, and then everything must come right by itself.

1. Every node serves with the driver that the policy asks for.
2. Nothing is left of upgrades: no cordon of ours, no pause, no node between two drivers.
3. Nobody writes anything for ten minutes.
4. Another version reaches every node, too, but one that a person cordoned and that pods use: that stays as it is, and
   holds up nobody.
"""

from collections import Counter

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

from tessera.api.driver.objects import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.api.driver.status import DRIVER_SET_LABEL, PAUSE_LABEL, PAUSED, UPGRADE_STATE_LABEL, Phase
from tessera.driver.rollout.state import CHANGING, REQUESTED_ANNOTATION, State
from tessera.kube.resources import PODS

#: Simulated seconds: until all serve, after that until all rests, and in which nobody writes then.
COMES_RIGHT, RESTS, QUIET = 14_400.0, 3_600.0, 600.0
_LOOKS = 600.0


async def put_right(s: Scene) -> None:
    """What people and tenants take back."""
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
        await s.label(name, **dict.fromkeys(SWITCHES) | {"nvidia.com/gpu.present": "true"})
        if name in s.always.foreign:
            await s.uncordon(name)
    await s.ask("all may be evicted", s.client.delete(BUDGETS, BUDGET, "default"))
    for name in s.tenants:
        await s.ask(f"tenant's pod {name} goes", s.client.delete(PODS, name, "default", grace_seconds=0))
    await s.ask("the second ClusterPolicy is deleted", s.client.delete(CLUSTER_POLICIES, SECOND))
    for name in DRIVERS:
        await s.ask(f"NVIDIADriver {name} is deleted", s.client.delete(NVIDIA_DRIVERS, name))


async def comes_right(s: Scene) -> None:
    """Under a good policy, or under one whose drivers an NVIDIADriver names, all serve; then all rests."""
    version = s.rng.choice(VERSIONS)
    if s.rng.random() < 0.3:
        spec = driver(s, good=True) | {"version": version, "default": True}
        await apply_driver(s, DEFAULT_DRIVER, spec)
        await good_policy(s, useNvidiaDriverCRD=True)
    else:
        await good_policy(s, version=version)
    await _serve(s, version, s.nodes)
    await s.lab.clock.sleep(RESTS)
    _look_at_rest(s)
    await _look_at_writes(s)


async def goes_on(s: Scene) -> None:
    """With one node that a person cordoned, another version reaches all others."""
    kept = s.node()
    await s.cordon(kept)
    version = s.rng.choice([each for each in VERSIONS if each not in {_loaded(s, name) for name in s.nodes}])
    await good_policy(s, version=version)
    await s.ask(f"NVIDIADriver {DEFAULT_DRIVER} is deleted", s.client.delete(NVIDIA_DRIVERS, DEFAULT_DRIVER))
    await _serve(s, version, [name for name in s.nodes if name != kept])
    await s.lab.clock.sleep(RESTS)
    _look_at_rest(s)


async def _serve(s: Scene, version: str, names: list[str]) -> None:
    """Waits until nodes serve with a version; a person asks again for nodes on which it failed before."""
    for _ in range(int(COMES_RIGHT / _LOOKS)):
        await s.lab.clock.sleep(_LOOKS)
        missing = [
            name for name in names if not (s.lab.serves(name) and _loaded(s, name) in {version, branch(version)})
        ]
        if not missing:
            return
        for name in missing:
            await _ask_again(s, name)
    for name in missing:
        s.story.problem(f"{name} does not serve with {version}: {_account(s, name)}")


async def _ask_again(s: Scene, name: str) -> None:
    seen = s.lab.nodes.cache.get(name)
    if seen is None or seen.metadata.labels.get(UPGRADE_STATE_LABEL) != State.FAILED.value:
        return
    if s.lab.serves(name) and REQUESTED_ANNOTATION not in seen.metadata.annotations:
        await s.annotate(name, REQUESTED_ANNOTATION, "true")


def _loaded(s: Scene, name: str) -> str | None:
    machine = s.lab.cluster.nodes[name].machine
    return machine.loaded_driver if machine is not None else None


def _account(s: Scene, name: str) -> str:
    """How a node stands."""
    told, seen = s.lab.told(name), s.lab.nodes.cache.get(name)
    what = f"{told.phase.value}, set {told.set}: {told.reason}" if told is not None else "is told nothing"
    state = seen.metadata.labels.get(UPGRADE_STATE_LABEL, "no state") if seen is not None else "no node"
    return f"{what} [{state}, {_loaded(s, name)} is loaded, offers {s.lab.gpus(name)}]"


def _look_at_rest(s: Scene) -> None:
    for node in s.lab.nodes.cache.values():
        name, marks = node.metadata.name, node.metadata.labels
        if marks.get(PAUSE_LABEL) == PAUSED:
            s.story.problem(f"{name} is left paused: {_account(s, name)}")
        if marks.get(DRIVER_SET_LABEL) == CHANGING:
            s.story.problem(f"{name} is left between two drivers: {_account(s, name)}")
        if node.spec.unschedulable and name not in s.always.foreign:
            s.story.problem(f"{name} is left cordoned: {_account(s, name)}")


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


def look_at_round(s: Scene) -> None:
    """What holds after half an hour in which nobody did anything, whatever was done before."""
    if not s.governed:
        return
    made = {each.id: each for each in s.lab.driver_sets}
    for name, node in s.lab.cluster.nodes.items():
        seen, told = s.lab.nodes.cache.get(name), s.lab.told(name)
        if seen is None or told is None:
            continue
        label = seen.metadata.labels.get(DRIVER_SET_LABEL, "")
        if label in made and made[label].pool.kernel != node.kernel:
            s.story.problem(f"{name} runs {node.kernel}, its driver set is for {made[label].pool.text}")
        if told.phase is not Phase.READY and not told.reason:
            s.story.problem(f"{name} is told no reason: {_account(s, name)}")
        if label not in {"", CHANGING, told.set}:
            s.story.problem(f"{name} is told of set {told.set}, and has the label of {label}")
        if s.lab.gpus(name) and _loaded(s, name) is None:
            s.story.problem(f"{name} offers cards without a driver: {_account(s, name)}")
