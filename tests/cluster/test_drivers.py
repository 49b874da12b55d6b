"""Drivers in whole clusters: machines without one, a registry, the real controller and agents; simulated time."""

from collections.abc import Callable

import pytest
from tests.cluster.driverlab import JAMMY, K1, K2, NEWER, REPOSITORY, VERSION, Drivers, builder, node, precompiled

from tessera.api.nodes.node_marks import (
    DRIVER_SET_LABEL,
    PAUSE_LABEL,
    UPGRADE_STATE_LABEL,
    DriverPhase,
    DriverStrategy,
)
from tessera.driver.images import Outcome
from tessera.gpu_operator.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.gpu_operator.policy_objects import OWNER_LABEL
from tessera.kube.resources import DEPLOYMENTS


def test_covered_kernels_get_precompiled_drivers_and_others_are_built_with_the_reasons_told(
    with_drivers: Callable[..., None],
) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        await lab.served("a", strategy=DriverStrategy.PRECOMPILED)
        await lab.served("b", strategy=DriverStrategy.BUILT)
        status = lab.told("b")
        assert status is not None
        assert [each.strategy for each in status.rejected] == [
            DriverStrategy.PREINSTALLED,
            DriverStrategy.PRECOMPILED,
            DriverStrategy.PRECOMPILED_BRANCH,
        ]
        assert K2 in status.rejected[1].reason
        assert status.image.startswith(f"{REPOSITORY}@sha256:")
        assert lab.condition("GpuDriverReady", "b")[:2] == ("True", "Ready")
        policy = await lab.client.get(CLUSTER_POLICIES, "cluster-policy")
        assert policy["status"]["state"] == "ready"
        assert not lab.never_pulled

    with_drivers(scenario, [node("a", K1), node("b", K2)], precompiled(K1) | builder())


@pytest.mark.soak
def test_an_image_that_comes_later_is_offered_and_taken_when_nobody_uses_the_cards(
    with_drivers: Callable[..., None],
) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        await lab.served("b", strategy=DriverStrategy.BUILT)
        await lab.create("job", {"nvidia.com/gpu": 1})
        await lab.running("job")
        for name, image in precompiled(K2).items():
            lab.catalogue.push(name, image)
        await lab.until(lambda: (status := lab.told("b")) and status.offered, "the image is offered")
        await lab.clock.sleep(1800)
        assert lab.phase("job") == "Running"
        assert lab.serves("b", DriverStrategy.BUILT)
        await lab.delete("job")
        await lab.served("b", strategy=DriverStrategy.PRECOMPILED)
        status = lab.told("b")
        assert status is not None
        assert not status.offered
        assert len(lab.driver_sets) == 1

    with_drivers(scenario, [node("b", K2)], builder())


def test_five_kinds_of_nodes_get_five_images_and_a_node_that_says_nothing_stands_alone(
    with_drivers: Callable[..., None],
) -> None:
    kernel = "5.14.0-284.54.1.el9_2"
    coreos = "Red Hat Enterprise Linux CoreOS 415.92.202402130021-0 (Plow)"
    generic = "6.8.0-45-generic"
    nodes = [
        node("jammy", generic, JAMMY),
        node("noble", generic, "Ubuntu 24.04.1 LTS"),
        node("x86", f"{kernel}.x86_64", coreos),
        node("arm", f"{kernel}.aarch64", coreos, "arm64"),
        node("arm64k", f"{kernel}.aarch64+64k", coreos, "arm64"),
        node("blank", generic, "Our own Linux"),
    ]
    images = precompiled(generic) | precompiled(generic, system="ubuntu24.04")
    for architecture in ("x86_64", "aarch64", "aarch64+64k"):
        images |= precompiled(f"{kernel}.{architecture}", system="rhcos4.15")

    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        known = [each.name for each in nodes[:-1]]
        await lab.served(*known, strategy=DriverStrategy.PRECOMPILED)
        assert len({made.pool for made in lab.driver_sets}) == 5
        assert len({made.image for made in lab.driver_sets}) == 5
        status = lab.told("blank")
        assert status is not None
        assert (status.strategy, status.phase) == (DriverStrategy.BLOCKED, DriverPhase.BLOCKED)
        assert "Our own Linux" in status.reason

    with_drivers(scenario, nodes, images)


def test_a_forced_boot_into_a_kernel_without_an_image_is_built_for_at_once_and_never_backs_off(
    with_drivers: Callable[..., None],
) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        await lab.served("a", strategy=DriverStrategy.PRECOMPILED)
        lab.cluster.nodes["a"].reboot(K2)
        await lab.until(lambda: lab.strategy("a") is DriverStrategy.BUILT, "the driver is being built")
        await lab.served("a", strategy=DriverStrategy.BUILT)
        assert not lab.never_pulled
        assert {made.pool.kernel for made in lab.driver_sets} == {K2}

    with_drivers(scenario, [node("a", K1)], precompiled(K1) | builder())


def test_an_image_that_kubelets_cannot_pull_is_left_for_the_next_way_and_tried_again_by_nobody_who_serves(
    with_drivers: Callable[..., None],
) -> None:
    async def scenario(lab: Drivers) -> None:
        (name,) = precompiled(K1)
        lab.catalogue.refuse(f"{REPOSITORY}@{lab.catalogue.digest(name)}", Outcome.UNAUTHORIZED)
        await lab.policy()
        await lab.served("a", strategy=DriverStrategy.BUILT)
        assert lab.never_pulled
        await lab.clock.sleep(3600)
        assert lab.serves("a", DriverStrategy.BUILT)
        status = lab.told("a")
        assert status is not None
        assert any("cannot be pulled" in each.reason for each in status.rejected) or status.offered

    with_drivers(scenario, [node("a", K1)], precompiled(K1) | builder())


#: What a registry may refuse with, the words for it, and the phase of a node that has no driver then.
REFUSALS = [
    (Outcome.NOT_FOUND, "no such tag", DriverPhase.BLOCKED),
    (Outcome.UNAUTHORIZED, "credentials", DriverPhase.BLOCKED),
    (Outcome.WRONG_ARCHITECTURE, "architectures", DriverPhase.BLOCKED),
    (Outcome.UNREACHABLE, "does not answer", DriverPhase.WAITING),
]


@pytest.mark.parametrize(("outcome", "words", "phase"), REFUSALS)
def test_what_a_registry_refuses_leads_to_no_daemonset_and_is_called_by_its_name(
    with_drivers: Callable[..., None], outcome: Outcome, words: str, phase: DriverPhase
) -> None:
    async def scenario(lab: Drivers) -> None:
        if outcome is not Outcome.NOT_FOUND:
            lab.catalogue.refuse(f"{REPOSITORY}:*", outcome)
        await lab.policy()
        await lab.until(lambda: (told := lab.told("a")) and told.phase is phase, f"the node is {phase.value}")
        await lab.clock.sleep(600)
        status = lab.told("a")
        assert status is not None
        assert status.phase is phase
        assert not lab.driver_sets
        assert lab.condition("GpuDriverReady", "a")[0] == "False"
        assert words in status.reason + " ".join(each.reason for each in status.rejected)

    images = {} if outcome is Outcome.NOT_FOUND else precompiled(K1) | builder()
    with_drivers(scenario, [node("a", K1)], images)


@pytest.mark.soak
@pytest.mark.parametrize(("outcome", "words", "_phase"), REFUSALS)
def test_a_newer_version_that_a_registry_refuses_touches_no_node_that_serves(
    with_drivers: Callable[..., None], outcome: Outcome, words: str, _phase: DriverPhase
) -> None:
    async def scenario(lab: Drivers) -> None:
        if outcome is not Outcome.NOT_FOUND:
            lab.catalogue.refuse(f"{REPOSITORY}:{NEWER}*", outcome)
            lab.catalogue.refuse(f"{REPOSITORY}:{NEWER.partition('.')[0]}-*", outcome)
        await lab.policy()
        await lab.served("a", "b")
        await lab.create("job", {"nvidia.com/gpu": 1})
        await lab.running("job")
        before, sets = pods_and_nodes(lab), lab.driver_sets
        assert len(before[-1]) == 2
        seen = []
        lab.nodes.add_handler(lambda _: seen.append(pods_and_nodes(lab)))
        await lab.policy(version=NEWER)
        await lab.clock.sleep(1800)
        await lab.kill()
        await lab.clock.sleep(1800)
        assert {repr(each) for each in seen} == {repr(before)}
        assert lab.driver_sets == sets
        assert lab.phase("job") == "Running"
        assert lab.serves("a")
        assert lab.serves("b")
        status = lab.told("a")
        assert status is not None
        assert words in status.reason

    images = precompiled(K1) if outcome is Outcome.NOT_FOUND else precompiled(K1) | precompiled(K1, NEWER)
    with_drivers(scenario, [node("a"), node("b")], images)


def pods_and_nodes(lab: Drivers) -> tuple[tuple[object, ...], ...]:
    """Returns all that an upgrade would change: cordons, taints, labels of drivers, and the pods that bring them."""
    nodes = sorted(lab.nodes.cache.values(), key=lambda each: each.metadata.name)
    labels = (DRIVER_SET_LABEL, UPGRADE_STATE_LABEL, PAUSE_LABEL)
    found = [
        (each.metadata.name, each.spec.unschedulable, each.spec.taints, *map(each.metadata.labels.get, labels))
        for each in nodes
    ]
    drivers = [each for each in lab.own_pods.cache.values() if "tessera-driver" in each.metadata.labels.values()]
    return (*found, tuple(sorted(each.metadata.uid for each in drivers)))


def test_nodes_on_an_uncovered_kernel_cause_one_build_even_if_the_controller_dies(
    with_drivers: Callable[..., None],
) -> None:
    """Once its image is there, they take as long as with a precompiled driver, as do nodes that come later."""
    built = "image-registry.openshift-image-registry.svc:5000/drivers"

    async def scenario(lab: Drivers) -> None:
        await lab.policy(annotations={"tessera.dev/driver-build-repository": built})
        covered = await took(lab, "covered")
        await lab.until(lambda: len(lab.jobs.cache) == 1, "a build has begun")
        await lab.kill()
        while not lab.catalogue.tags(f"{built}/driver"):
            await lab.clock.sleep(1)
        names = [f"n{number}" for number in range(4)]
        four = await took(lab, *names)
        assert len(four) == 4
        assert max(four.values()) <= covered["covered"]
        assert {lab.strategy(each) for each in names} == {DriverStrategy.MIRROR}

        for name, kernel in (("later", K2), ("later-covered", K1)):
            lab.cluster.add_node(node(name, kernel))
        later = await took(lab, "later", "later-covered")
        assert later["later"] <= later["later-covered"]
        assert lab.strategy("later") is DriverStrategy.MIRROR
        assert len(lab.jobs.cache) == 1
        assert len(lab.driver_sets) == 2

    nodes = [node("covered", K1), *(node(f"n{number}", K2) for number in range(4))]
    with_drivers(scenario, nodes, precompiled(K1) | builder())


async def took(lab: Drivers, *names: str) -> dict[str, float]:
    """Seconds from now until each of the nodes serves."""
    began, found = lab.clock.now(), dict[str, float]()
    while len(found) < len(names) and lab.clock.now() < began + 1800:
        found |= {each: lab.clock.now() - began for each in names if each not in found and lab.serves(each)}
        await lab.clock.sleep(1)
    assert found.keys() == set(names)
    return found


@pytest.mark.soak
def test_a_newer_version_comes_node_by_node_and_a_controller_that_dies_goes_on(
    with_drivers: Callable[..., None],
) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        await lab.served("a", "b")
        await lab.policy(version=NEWER)
        for _ in range(4):
            await lab.clock.sleep(20)
            await lab.kill()

        def newer() -> bool:
            found = [lab.told(name) for name in ("a", "b")]
            return all(each is not None and each.version == NEWER for each in found)

        await lab.until(newer, "both have the newer version", 3600)
        await lab.served("a", "b")
        assert [made.version for made in lab.driver_sets] == [NEWER]

    images = precompiled(K1) | precompiled(K1, NEWER)
    with_drivers(scenario, [node("a"), node("b")], images)


def test_a_policy_that_is_deleted_takes_the_drivers_away_and_another_one_brings_them_back(
    with_drivers: Callable[..., None],
) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        await lab.served("a")
        await lab.client.delete(CLUSTER_POLICIES, "cluster-policy")
        await lab.until(lambda: not lab.gpus("a") and not lab.driver_sets, "the node has no driver")
        assert lab.told("a") is None
        assert lab.condition("GpuDriverReady", "a") == ("", "", "")
        await lab.policy()
        await lab.served("a")

    with_drivers(scenario, [node("a")], precompiled(K1))


@pytest.mark.soak
def test_a_policy_that_comes_back_with_another_version_replaces_the_driver_after_the_pods_that_used_it(
    with_drivers: Callable[..., None],
) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        await lab.served("a")
        await lab.create_owned("train", {"nvidia.com/gpu": 1})
        await lab.until(lambda: lab.ready_of("train"), "the pod runs")
        await lab.client.delete(CLUSTER_POLICIES, "cluster-policy")
        await lab.clock.sleep(300)
        machine = lab.cluster.nodes["a"].machine
        assert machine is not None
        assert machine.loaded_driver == VERSION
        assert lab.ready_of("train")
        told = lab.told("a")
        assert told is not None
        assert "stays while pods use its cards" in told.reason
        await lab.policy(version=NEWER)
        await lab.until(lambda: machine.loaded_driver == NEWER, "the newer driver is loaded", 3600)
        await lab.until(lambda: lab.ready_of("train"), "the pod runs again", 3600)

    with_drivers(scenario, [node("a")], precompiled(K1) | precompiled(K1, NEWER))


def test_a_policy_with_a_mistake_changes_nothing_and_says_what_is_wrong(with_drivers: Callable[..., None]) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        await lab.served("a")
        before = lab.driver_sets
        await lab.policy(version="525 125")
        await lab.clock.sleep(60)
        await lab.kill()
        await lab.clock.sleep(600)
        assert lab.serves("a")
        assert lab.driver_sets == before
        policy = await lab.client.get(CLUSTER_POLICIES, "cluster-policy")
        assert policy["status"]["state"] == "notReady"
        # What it said before goes on: it gives a driver to a node that boots into another kernel, too.
        lab.cluster.nodes["a"].reboot(K2)
        await lab.until(lambda: K2 in (told.pool if (told := lab.told("a")) else ""), "the node is told of its kernel")
        await lab.served("a")

    with_drivers(scenario, [node("a")], precompiled(K1) | precompiled(K2))


def test_hosts_with_a_toolkit_of_their_own_get_drivers_that_are_validated_all_the_same(
    with_drivers: Callable[..., None],
) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        await lab.client.merge_patch(CLUSTER_POLICIES, "cluster-policy", {"spec": {"toolkit": {"enabled": False}}})
        await lab.served("a", strategy=DriverStrategy.PRECOMPILED)

    with_drivers(scenario, [node("a", K1)], precompiled(K1))


def test_the_controllers_deployment_needs_no_setting_for_drivers(with_drivers: Callable[..., None]) -> None:
    """Its own image is learnt from its pod, so that validations and the toolkit's init container have one."""

    async def scenario(lab: Drivers) -> None:
        deployment = await lab.client.get(DEPLOYMENTS.as_dicts(), "tessera-controller", "tessera-system")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert not [each for each in container["args"] if "image" in each]
        await lab.policy()
        await lab.served("a")
        images = {
            pod.spec.containers[0].image for pod in lab.own_pods.cache.values() if "validation" in pod.metadata.name
        }
        assert images == {container["image"]}

    with_drivers(scenario, [node("a")], precompiled(K1))


def test_nvidiadriver_objects_give_each_group_of_nodes_a_driver_of_its_own(with_drivers: Callable[..., None]) -> None:
    async def scenario(lab: Drivers) -> None:
        base = {"driverType": "gpu", "usePrecompiled": True, "repository": "nvcr.io/nvidia", "image": "driver"}
        newer = {**base, "version": NEWER, "nodeSelector": {"kubernetes.io/hostname": "b"}}
        for name, spec in {"rest": {**base, "version": VERSION, "default": True}, "newer": newer}.items():
            await lab.client.create(NVIDIA_DRIVERS, {"metadata": {"name": name}, "spec": spec})
        await lab.client.create(
            CLUSTER_POLICIES,
            {"metadata": {"name": "cluster-policy"}, "spec": {"driver": {"useNvidiaDriverCRD": True}}},
        )
        await lab.served("a", "b")
        told = {name: lab.told(name) for name in ("a", "b")}
        assert {name: each.version for name, each in told.items() if each} == {"a": VERSION, "b": NEWER}
        owners = {each.metadata.name: each.metadata.labels.get(OWNER_LABEL) for each in lab.nodes.cache.values()}
        assert owners == {"a": "rest", "b": "newer"}
        for name in ("rest", "newer"):
            found = await lab.client.get(NVIDIA_DRIVERS, name)
            assert found["status"]["state"] == "ready"
        await lab.client.delete(NVIDIA_DRIVERS, "newer")
        await lab.client.delete(NVIDIA_DRIVERS, "rest")
        await lab.until(lambda: not lab.driver_sets, "no node has a driver")
        assert all(OWNER_LABEL not in each.metadata.labels for each in lab.nodes.cache.values())

    with_drivers(scenario, [node("a"), node("b")], precompiled(K1) | precompiled(K1, NEWER))
