"""Actions of people in a cluster with managed drivers: policies, NVIDIADrivers, labels, cordons, workloads."""

import json
from typing import Any

from tests.cluster.storm.scene import Scene
from tests.cluster.storm.world import BUILT, VERSIONS, branch

from tessera.driver.node_facts import REQUESTED_ANNOTATION
from tessera.gpu_operator.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.kube.resources import CONFIGMAPS, REPLICASETS
from tessera.kube.resources.meta import Resource

POLICY, SECOND = "cluster-policy", "another"
DEFAULT_DRIVER = "rest"
DRIVERS = (DEFAULT_DRIVER, "one", "two")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, dict[str, Any])
BUDGET = "budget"

#: Mistakes in a driver's section that are refused, so that what was said before goes on.
_MISTAKES: tuple[dict[str, Any], ...] = (
    {"version": ""},
    {"repository": 5},
    {"image": "a b"},
    {"version": "x" * 500},
    {"upgradePolicy": "x"},
    {"upgradePolicy": {"maxUnavailable": "many"}},
    {"upgradePolicy": {"maxParallelUpgrades": -3}},
    {"env": [{"name": ""}]},
    {"kernelModuleConfig": {"name": "missing"}},
    {"startupProbe": {"periodSeconds": 0}},
    {"usePrecompiled": "yes"},
    {"version": f"sha256:{'a' * 64}"},
    {"resources": {"limits": {"memory": "lots"}}},
    {"image": "driver@sha256:zz"},
)
_CANARY, _FAILURES = "tessera.dev/driver-canary", "tessera.dev/driver-failure-budget"
_MIRRORS, _BUILD = "tessera.dev/driver-mirrors", "tessera.dev/driver-build-repository"
_NONSENSE = ("-1", "x", "9" * 400, "a b c", "http://169.254.169.254/x", "{}")

#: Labels by which people keep a node, or its driver, as it is; calm takes them away.
SWITCHES: dict[str, tuple[str | None, ...]] = {
    "nvidia.com/gpu-driver-upgrade.skip": ("true", None),
    "nvidia.com/gpu.deploy.driver": ("false", None),
    "nvidia.com/gpu.deploy.operands": ("false", None),
    "nvidia.com/gpu.workload.config": ("vm-passthrough", None),
    "nvidia.com/gpu.present": ("true", None),
}


def upgrade(s: Scene, *, good: bool) -> dict[str, Any]:
    """An ``upgradePolicy``; a good one lets every rollout come to its end."""
    rng = s.rng
    found: dict[str, Any] = {
        "autoUpgrade": good or rng.random() < 0.85,
        "maxParallelUpgrades": rng.choice([0, 1, 1, 2, 3]),
        "maxUnavailable": rng.choice([1, 2, "25%", "50%", "100%", 1 if good else 0]),
        "podDeletion": {
            "force": good or rng.random() < 0.8,
            "timeoutSeconds": rng.choice([60, 300]),
            "deleteEmptyDir": True,
        },
        "drain": {"enable": rng.random() < 0.3, "force": True, "timeoutSeconds": 120, "deleteEmptyDir": True},
    }
    if rng.random() < 0.2:
        timeout = 120 if good else rng.choice([0, 120])
        found["waitForCompletion"] = {"podSelector": rng.choice(["app=job", "a=b,c"]), "timeoutSeconds": timeout}
    return found


def driver(s: Scene, *, good: bool) -> dict[str, Any]:
    """A driver's section."""
    version = s.rng.choice(VERSIONS)
    return {
        "usePrecompiled": s.rng.random() < 0.7,
        "repository": "nvcr.io/nvidia",
        "image": "driver",
        "version": branch(version) if s.rng.random() < 0.2 else version,
        "upgradePolicy": upgrade(s, good=good),
    }


def _annotations(s: Scene, *, good: bool) -> dict[str, str]:
    rng, found = s.rng, {}
    if rng.random() < 0.4:
        found[_CANARY] = rng.choice(["0", "1", "2", "3"])
    if good or rng.random() < 0.4:
        found[_FAILURES] = "50" if good else rng.choice(["1", "2", "5"])
    if rng.random() < 0.3:
        found[_MIRRORS] = "mirror.local/nvidia"
    if rng.random() < 0.3:
        found[_BUILD] = BUILT
    return found


async def apply_policy(s: Scene, section: dict[str, Any], marks: dict[str, str], **more: Any) -> None:
    """A person applies the ClusterPolicy."""
    body = {"metadata": {"annotations": marks}, "spec": {"driver": {"enabled": True, **section}, **more}}
    what = f"ClusterPolicy {json.dumps(body['spec'])} {marks}"
    await s.ask(what, s.client.apply(CLUSTER_POLICIES, POLICY, body))


async def good_policy(s: Scene, **section: Any) -> None:
    """One without a mistake, under which every node comes to its driver."""
    s.governed = True
    await apply_policy(s, driver(s, good=True) | section, _annotations(s, good=True))


async def policy(s: Scene) -> None:
    """Another policy, perhaps with a mistake in it, perhaps by NVIDIADriver objects."""
    rng, section, marks = s.rng, driver(s, good=False), _annotations(s, good=False)
    mistake = rng.random()
    s.governed = True
    if mistake < 0.15:
        section |= rng.choice(_MISTAKES)
        s.governed = False
    elif mistake < 0.25:
        marks[rng.choice([_CANARY, _FAILURES, _MIRRORS, _BUILD])] = rng.choice(_NONSENSE)
        s.governed = False
    elif mistake < 0.3:
        section["enabled"] = False
    elif mistake < 0.5:
        section["useNvidiaDriverCRD"] = True
    toolkit = {"toolkit": {"enabled": rng.random() < 0.5}} if rng.random() < 0.2 else {}
    await apply_policy(s, section, marks, **toolkit)


async def policy_is_deleted(s: Scene) -> None:
    """Gone for good, or made again a moment or half an hour later, with what it said before or another thing."""
    await s.remove(CLUSTER_POLICIES, POLICY)
    s.governed = False
    if s.rng.random() < 0.7:
        await s.lab.clock.sleep(s.rng.choice([0.0, 1.0, 60.0, 1800.0]))
        await good_policy(s)


async def second_policy(s: Scene) -> None:
    """A ClusterPolicy that is ignored, until it is the only one."""
    if s.rng.random() < 0.5:
        body = {"spec": {"driver": {"version": "1.2.3", "repository": "x.io/y", "image": "z"}}}
        await s.ask("a second ClusterPolicy", s.client.apply(CLUSTER_POLICIES, SECOND, body))
    else:
        await s.remove(CLUSTER_POLICIES, SECOND)


async def apply_driver(s: Scene, name: str, spec: dict[str, Any]) -> None:
    """A person applies an NVIDIADriver."""
    what = f"NVIDIADriver {name} {json.dumps(spec)}"
    await s.ask(what, s.client.apply(NVIDIA_DRIVERS, name, {"spec": {"driverType": "gpu", **spec}}))


async def nvidia_driver(s: Scene) -> None:
    """An NVIDIADriver comes, changes or goes."""
    rng, name = s.rng, s.rng.choice(DRIVERS)
    if rng.random() < 0.3:
        await s.remove(NVIDIA_DRIVERS, name)
        return
    spec = driver(s, good=False)
    if name == DEFAULT_DRIVER:
        spec["default"] = True
    elif rng.random() < 0.8:
        spec["nodeSelector"] = {"kubernetes.io/hostname": s.node()}
    if rng.random() < 0.15:
        spec |= rng.choice([{"version": ""}, {"nodeSelector": {"a b": "c"}}, {"driverType": "vgpu"}])
    await apply_driver(s, name, spec)


async def switch(s: Scene) -> None:
    """A person keeps a node, or its driver, as it is, or does so no longer."""
    key = s.rng.choice(list(SWITCHES))
    await s.label(s.node(), **{key: s.rng.choice(SWITCHES[key])})


async def cordon(s: Scene) -> None:
    """A person takes a node out of service, or puts it back."""
    name = s.node()
    if name in s.always.foreign:
        await s.uncordon(name)
    else:
        await s.cordon(name)


async def request(s: Scene) -> None:
    """A person asks for one node's upgrade."""
    await s.annotate(s.node(), REQUESTED_ANNOTATION, "true")


async def workload(s: Scene) -> None:
    """A ReplicaSet of one pod with a card comes or goes."""
    if s.workloads and s.rng.random() < 0.4:
        name = s.workloads.pop(s.rng.randrange(len(s.workloads)))
        await s.remove(REPLICASETS, name, "default", propagation="Background")
        return
    name = s.name("w")
    if await s.ask(f"workload {name} comes", s.lab.create_owned(name, {"nvidia.com/gpu": 1})):
        s.workloads.append(name)


async def budget(s: Scene) -> None:
    """A PodDisruptionBudget that forbids to evict a workload comes or goes."""
    if s.workloads and s.rng.random() < 0.5:
        name = s.rng.choice(s.workloads)
        body = {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}}}
        await s.ask(f"{name} may not be evicted", s.client.apply(BUDGETS, BUDGET, body, "default"))
    else:
        await s.remove(BUDGETS, BUDGET, "default")


async def next_kernels(s: Scene) -> None:
    """A person lists kernels that are to come, some of which nobody has an image for."""
    kernels = s.rng.sample(["5.15.0-69-generic", "5.15.0-99-generic", "6.8.0-46-generic", "no kernel"], 2)
    data = {s.rng.choice(["ubuntu22.04", "ubuntu24.04", "windows"]): "\n".join(kernels)}
    body = s.client.apply(CONFIGMAPS.as_dicts(), "driver-next-kernels", {"data": data}, "tessera-system")
    await s.ask(f"kernels that are to come: {data}", body)


ACTIONS = (
    policy,
    policy,
    policy_is_deleted,
    second_policy,
    nvidia_driver,
    nvidia_driver,
    switch,
    switch,
    cordon,
    request,
    workload,
    workload,
    budget,
    next_kernels,
)
