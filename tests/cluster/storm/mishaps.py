"""Mishaps of a cluster: registries, reboots, nodes that come and go, processes that die, wrong writes.

What is forged here is healed without anybody's help. Left out is what only an administrator can put right, as the
DaemonSet of the agent, and what is believed because nobody else may write it: a label that names another driver set
that there is, a mark that a cordon is ours, a marker that a driver was proven.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.cluster.driverlab import COSTS
from tests.cluster.storm.scene import Scene
from tests.cluster.storm.world import BOTH, BUILT, is_driver

from tessera.api.nodes.node_marks import DRIVER_SET_LABEL, PAUSE_LABEL, PAUSED, UPGRADE_STATE_LABEL
from tessera.driver.driver_sets import APP_LABEL, NAMESPACE, SET_ANNOTATION
from tessera.driver.images import Outcome
from tessera.driver.node_facts import CHANGING, RECORD_ANNOTATION
from tessera.driver.rollout.candidates import FAILURES_CONFIG_MAP
from tessera.kube.resources import CONFIGMAPS, DAEMONSETS, PODS
from tessera_lab.apiserver.interfaces import GroupResource
from tessera_lab.drivers.driver_containers import broken_driver
from tessera_lab.kubelet.images.catalogue import SimulatedImage

#: More nodes, or fewer, are not made of it.
MOST_NODES, FEWEST_NODES = 6, 3

_NESTED = '{"a":' + "[" * 3500
#: What others may have written where we keep JSON.
JUNK = (
    "",
    "{}",
    "null",
    "[]",
    "x" * 2000,
    _NESTED,
    '{"strategy":"built","phase":"ready","since":"x"}',
    "1e999",
    '{"previous":"a","target":"b","since":1e308,"began":-1e308}',
    '{"previous":"","target":"","since":9e99,"began":9e99,"cause":"boo","returning":true}',
    "é" * 300,
    "-1",
    "NaN",
    "9" * 5000,
)
#: Labels of ours that a person writes, and that are put right.
FORGED_LABELS: tuple[tuple[str, str | None], ...] = (
    (DRIVER_SET_LABEL, None),
    (DRIVER_SET_LABEL, CHANGING),
    (DRIVER_SET_LABEL, "0123456789"),
    (UPGRADE_STATE_LABEL, None),
    (UPGRADE_STATE_LABEL, "upgrade-failed"),
    (UPGRADE_STATE_LABEL, "pod-restart-required"),
    (UPGRADE_STATE_LABEL, "boo"),
    (PAUSE_LABEL, PAUSED),
    (PAUSE_LABEL, None),
)
_ANNOTATIONS = (
    "tessera.dev/driver",
    RECORD_ANNOTATION,
    "tessera.dev/provisioning",
)
_CONFIG_MAPS = (FAILURES_CONFIG_MAP, "driver-images", "driver-policies", "provisioning-records", "driver-builds")
_OURS = (
    "tessera-controller",
    "tessera-agent",
    "tessera-webhook",
    "tessera-driver",
    "tessera-container-toolkit",
    "tessera-validation",
)
_REFUSED = (
    "nvcr.io/*",
    "nvcr.io/nvidia/driver:525*",
    "nvcr.io/nvidia/driver@*",
    "nvcr.io/nvidia/k8s/*",
    f"{BUILT}*",
    "*container-toolkit*",
    "*openshift/driver-toolkit*",
)
_REFUSALS = (Outcome.NOT_FOUND, Outcome.UNAUTHORIZED, Outcome.UNREACHABLE, Outcome.WRONG_ARCHITECTURE)
#: Labels that make a tenant's pod look like one of ours, or like NVIDIA's.
_DISGUISES: tuple[dict[str, str], ...] = (
    {"app": "nvidia-driver-daemonset"},
    {"app.kubernetes.io/component": "nvidia-driver"},
    {APP_LABEL: "tessera-driver", DRIVER_SET_LABEL: "x"},
    {APP_LABEL: "tessera-validation"},
    {APP_LABEL: "tessera-container-toolkit"},
    {APP_LABEL: "tessera-controller"},
)


async def image(s: Scene) -> None:
    """An image is pushed, pushed for one architecture only, pushed as one that does not work, or deleted."""
    name, chance = s.rng.choice([each for each in s.images if is_driver(each)]), s.rng.random()
    if chance < 0.35:
        s.story.note(f"image {name} is deleted")
        s.registries.delete(name)
    elif chance < 0.7:
        s.story.note(f"image {name} is pushed")
        s.registries.push(name, s.images[name])
    elif chance < 0.8:
        s.story.note(f"image {name} is pushed for amd64 only")
        program = s.images[name].program
        s.registries.push(name, SimulatedImage(size_mib=COSTS.precompiled_mib, program=program))
    else:
        after = s.rng.choice([0.0, 5.0, 60.0])
        s.story.note(f"image {name} is pushed, and ends after {after:.0f} s")
        program = broken_driver("modprobe nvidia: invalid argument", after=after)
        s.registries.push(name, SimulatedImage(size_mib=COSTS.precompiled_mib, program=program, architectures=BOTH))


async def registry(s: Scene) -> None:
    """A registry refuses something, or does so no longer."""
    if s.refused and s.rng.random() < 0.5:
        pattern = s.refused.pop(s.rng.randrange(len(s.refused)))
        s.story.note(f"{pattern} is not refused any more")
        s.registries.allow(pattern)
        return
    pattern, outcome = s.rng.choice(_REFUSED), s.rng.choice(_REFUSALS)
    s.story.note(f"{pattern} is refused: {outcome.value}")
    s.registries.refuse(pattern, outcome)
    s.refused.append(pattern)


async def reboot(s: Scene) -> None:
    """A machine boots, perhaps into another kernel."""
    name = s.node()
    kernel = s.rng.choice(["", s.machines.kernel(name)])
    s.story.note(f"{name} reboots{f' into {kernel}' if kernel else ''}")
    s.lab.cluster.nodes[name].reboot(kernel)


async def node_comes(s: Scene) -> None:
    if len(s.nodes) < MOST_NODES:
        spec = s.machines.draw()
        s.story.note(f"{spec.name} comes: {spec.os_image} {spec.kernel} {spec.architecture}")
        labels = {"cluster-api/accelerator": "t4"} if s.rng.random() < 0.7 else {}
        s.lab.cluster.add_node(spec, labels=labels)


async def node_goes(s: Scene) -> None:
    """A machine goes for good, or another one comes with its name."""
    if len(s.nodes) > FEWEST_NODES:
        name = s.node()
        s.story.note(f"{name} goes for good")
        s.always.foreign.discard(name)
        await s.lab.cluster.remove_node(name)
        if s.rng.random() < 0.3:
            await s.lab.clock.sleep(s.rng.choice([0.0, 0.3, 30.0]))
            s.story.note(f"another machine {name} comes")
            s.lab.cluster.add_node(s.machines.again(name))


async def watches_end(s: Scene) -> None:
    """The API server starts again; it may have forgotten what was before."""
    if s.rng.random() < 0.5:
        s.story.note("the API server forgets its history")
        for plural in ("nodes", "pods", "configmaps"):
            s.lab.cluster.server.core.store.forget_before(GroupResource("", plural))
    s.story.note("the API server ends all watches")
    s.lab.cluster.server.end_watches()


async def kubelet(s: Scene) -> None:
    name, down = s.node(), s.rng.choice([0.0, 5.0, 40.0])
    s.story.note(f"kubelet of {name} starts again, away for {down:.0f} s")
    await s.lab.cluster.nodes[name].restart_kubelet(down)


async def kill(s: Scene) -> None:
    """One of our pods is deleted at once, without time to end."""
    app, node = s.rng.choice(_OURS), s.node()
    found = [pod for pod in s.lab.own_pods.cache.values() if pod.metadata.labels.get(APP_LABEL) == app]
    found = [pod for pod in found if pod.spec.node_name == node] or found
    if found:
        name = s.rng.choice(found).metadata.name
        await s.ask(f"pod {name} is killed", s.client.delete(PODS, name, NAMESPACE, grace_seconds=0))


async def forged_label(s: Scene) -> None:
    key, value = s.rng.choice(FORGED_LABELS)
    await s.label(s.node(), **{key: value})


async def forged_annotation(s: Scene) -> None:
    key, value = s.rng.choice(_ANNOTATIONS), s.rng.choice([*JUNK, "true", None])
    if key == RECORD_ANNOTATION and value is not None:
        s.always.forged.add(value)
    await s.annotate(s.node(), key, value)


async def config_map(s: Scene) -> None:
    """Somebody writes into what we remember."""
    name, value = s.rng.choice(_CONFIG_MAPS), s.rng.choice([*JUNK, "x" * 900_000])
    seen = await s.client.list(CONFIGMAPS, NAMESPACE)
    keys = [key for each in seen.items if each.metadata.name == name for key in each.data]
    data = {s.rng.choice(sorted(keys)) if keys else "key": value}
    what = f"ConfigMap {name} is overwritten: {value[:40]!r} ({len(value)} characters)"
    await s.ask(what, s.client.apply(CONFIGMAPS.as_dicts(), name, {"data": data}, NAMESPACE))


async def daemonset(s: Scene) -> None:
    """Somebody deletes a DaemonSet that we made, or spoils what says what it is for."""
    made = [each.metadata.name for each in s.lab.sets.cache.values() if each.metadata.name != "tessera-agent"]
    if not made:
        return
    name = s.rng.choice(made)
    if s.rng.random() < 0.4:
        await s.ask(f"DaemonSet {name} is deleted", s.client.delete(DAEMONSETS, name, NAMESPACE))
        return
    body = {"metadata": {"annotations": {SET_ANNOTATION: s.rng.choice(JUNK)}}}
    await s.ask(f"DaemonSet {name} is spoiled", s.client.merge_patch(DAEMONSETS, name, body, NAMESPACE))


async def marker(s: Scene) -> None:
    """Somebody tidies up in /run/nvidia/validations, or leaves there what is no file."""
    name = s.node()
    folder = s.lab.cluster.nodes[name].markers
    if folder is None:
        return
    path = Path(folder) / s.rng.choice([".driver-ctr-ready", "driver-ready", "toolkit-ready", "cuda-ready"])
    # The agent copes with what is no file; what writes the other markers is NVIDIA's.
    ways = ["removed", "a folder", "a link to nowhere"] if path.name == "driver-ready" else ["removed"]
    how = s.rng.choice(ways)
    s.story.note(f"{name}: marker {path.name} is {how}")
    try:
        if how == "removed":
            path.unlink()
        elif how == "a folder":
            path.mkdir()
        else:
            path.symlink_to("/nonexistent")
    except OSError as error:
        s.story.note(f"  {error.strerror}")
        return
    if how != "removed":
        s.spoiled.append(path)


async def tenant(s: Scene) -> None:
    """A tenant's pod that calls itself one of ours."""
    name, node, labels = s.name("t"), s.node(), s.rng.choice(_DISGUISES)
    container = {"name": "c", "image": "busybox", "command": ["sleep", "infinity"]}
    spec = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
    if await s.ask(f"a tenant's pod on {node} has labels {labels}", s.client.create(PODS.as_dicts(), body, "default")):
        s.tenants.append(name)


Action = Callable[[Scene], Awaitable[None]]

ACTIONS: tuple[Action, ...] = (
    image,
    image,
    registry,
    reboot,
    node_comes,
    node_goes,
    watches_end,
    kubelet,
    kill,
    kill,
    forged_label,
    forged_annotation,
    config_map,
    daemonset,
    marker,
    tenant,
)
