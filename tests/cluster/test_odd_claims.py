"""ResourceClaims whose pods, templates, nodes and agents come and go at odd moments."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster.test_claim_views import why
from tests.cluster.test_resource_claims import NS, claiming, in_lab, profile, template
from tests.support.device_claims import claim, claim_template, claiming_pod, exactly
from tests.support.mortal_process import MortalAgent, MortalController, die_at, fate_of
from tests.support.virtual_lab import VirtualLab

from tessera.api.names import HOSTNAME_LABEL
from tessera.cli.install.manifests import AGENT
from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera.kube.resources import DAEMONSETS, NODES, PODS
from tessera.nvml.errors import InsufficientResources
from tessera_lab.apiserver.kinds import versions
from tessera_lab.cluster.cluster import SimulatedCluster

__all__ = ["in_lab"]

InLab = Callable[..., Any]


async def claims(lab: VirtualLab) -> list[str]:
    return sorted(each.metadata.name for each in (await lab.client.list(RESOURCE_CLAIMS, "default")).items)


async def users(lab: VirtualLab, of: str, *names: str, **spec: Any) -> None:
    """Pods with one claim, oldest first."""
    for name in names:
        body = claiming_pod(name, {"name": "gpu", "resourceClaimName": of}, terminationGracePeriodSeconds=0, **spec)
        await lab.client.create(PODS.as_dicts(), body, "default")
        await lab.clock.sleep(1.0)


async def stop_agents(lab: VirtualLab, *, stopped: bool) -> None:
    """No node has an agent while they are stopped."""
    selector = {"example.com/agents": "none" if stopped else None}
    spec = {"template": {"spec": {"nodeSelector": selector}}}
    await lab.client.merge_patch(DAEMONSETS, AGENT, {"spec": spec}, NS)
    if stopped:
        await lab.kill(AGENT)


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(each, marks=() if each in (versions.CLUSTERS[0], versions.CLUSTERS[-1]) else pytest.mark.soak)
        for each in versions.CLUSTERS
    ],
)
def test_a_claim_runs_on_every_version(in_lab: InLab, version: str) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", profile("3g.20gb"))
        for name in ("a", "b", "late"):
            await claiming(lab, name, "one")
        await lab.until(lambda: sum(map(lab.ready, ("a", "b", "late"))) == 2, "two of them run")
        assert len({start for _, _, start in lab.hardware()}) == 2
        for name in ("a", "b", "late"):
            await lab.delete(name)
        await lab.empty()

    in_lab(scenario, kubernetes=version)


def test_a_pod_that_is_deleted_by_force_keeps_its_device_until_kubelet_has_given_it_back(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "all", profile("7g.40gb"))
        await claiming(lab, "first", "all")
        await lab.running("first")
        (uuid,) = lab.devices("first", "main")
        await stop_agents(lab, stopped=True)  # kubelet cannot unprepare
        await lab.delete("first")
        await claiming(lab, "next", "all")
        await lab.clock.sleep(60.0)
        assert not lab.ready("next")
        assert lab.mig_uuids() == [uuid]
        await stop_agents(lab, stopped=False)
        await lab.until(lambda: lab.ready("next"), "the next pod runs", 300.0)
        assert len(lab.hardware()) == 1

    in_lab(scenario)


@pytest.mark.parametrize("while_away", [False, True])
def test_1278_a_claim_that_is_deleted_twice_leaves_nothing(in_lab: InLab, while_away: bool) -> None:
    """NVIDIA's driver keeps a claim for ever that was deleted while it was away (its issues 840 and 1278)."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("c", profile("7g.40gb")), "default")
        await users(lab, "c", "user")
        await lab.running("user")
        if while_away:
            await stop_agents(lab, stopped=True)
        for _ in range(2):
            await lab.client.delete(RESOURCE_CLAIMS, "c", "default")
        await lab.clock.sleep(5.0)
        assert await claims(lab) == ["c"], "its pod still runs"
        await lab.delete("user")
        await lab.clock.sleep(60.0)
        if while_away:
            await stop_agents(lab, stopped=False)
        await template(lab, "all", profile("7g.40gb"))
        await claiming(lab, "next", "all")
        await lab.until(lambda: lab.ready("next"), "the next pod has the place", 300.0)
        assert "c" not in await claims(lab)
        await lab.delete("next")
        await lab.until(lambda: not lab.hardware(), "nothing is left", 120.0)

    in_lab(scenario)


@pytest.mark.parametrize(
    "seconds", [0.0, 0.05, *(pytest.param(each, marks=pytest.mark.soak) for each in (0.02, 0.1, 0.2, 0.4, 0.8))]
)
def test_a_pod_that_is_deleted_while_it_is_placed_leaves_nothing(in_lab: InLab, seconds: float) -> None:
    """Between allocation and gate, while its device is being made, or while it starts."""

    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "half", profile("3g.20gb"))
        for round_ in range(3):
            for name in ("a", "b"):
                await claiming(lab, f"{name}{round_}", "half")
            await lab.clock.sleep(seconds)
            for name in ("a", "b"):
                await lab.delete(f"{name}{round_}")
        await template(lab, "all", profile("7g.40gb"))
        await claiming(lab, "next", "all")
        await lab.until(lambda: lab.ready("next"), "all of the card is free again", 120.0)
        await lab.delete("next")
        await lab.empty()
        assert await claims(lab) == []

    in_lab(scenario, slice_seconds=0.3)


def test_a_template_that_is_made_anew_counts_for_later_pods_only(in_lab: InLab) -> None:
    """The spec of a template cannot change, so people delete and create it."""

    async def anew(lab: VirtualLab, *requests: dict[str, Any]) -> None:
        await lab.client.delete(RESOURCE_CLAIM_TEMPLATES, "one", "default")
        await lab.client.create(RESOURCE_CLAIM_TEMPLATES.as_dicts(), claim_template("one", *requests), "default")

    async def scenario(lab: VirtualLab) -> None:
        nic = {"metadata": {"name": "nic"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'nic'"}}]}}
        await lab.client.create(DEVICE_CLASSES.as_dicts(), nic)
        await template(lab, "one", profile("7g.40gb"))
        for name in ("runs", "waits"):
            await claiming(lab, name, "one")
            await lab.clock.sleep(2.0)
        await lab.running("runs")
        await anew(lab, exactly("r0", "nic"))
        await claiming(lab, "others", "one")
        await lab.clock.sleep(20.0)
        assert lab.gates("others") == [], "nobody of ours holds a pod of another driver"
        await anew(lab, profile("1g.5gb"))
        await claiming(lab, "small", "one")
        await lab.delete("runs")
        await lab.running("waits")
        assert [each[1] for each in lab.hardware()] == ["7g.40gb"], "the claim that existed is as it was"
        await lab.delete("waits")
        await lab.running("small")
        assert [each[1] for each in lab.hardware()] == ["1g.5gb"]

    in_lab(scenario)


def test_a_pod_that_has_ended_before_its_claim_was_made_gets_nothing(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await claiming(lab, "dead", "late")  # its template does not exist yet
        failed = {"status": {"phase": "Failed"}}
        await lab.client.merge_patch(PODS, "dead", failed, "default", subresource="status")
        await claiming(lab, "deleted", "late")
        await lab.delete("deleted")
        await template(lab, "late", profile("7g.40gb"))
        await lab.clock.sleep(30.0)
        assert lab.instaslice().spec.pod_allocation_requests == {}
        await claiming(lab, "lives", "late")
        await lab.running("lives")
        await lab.delete("lives")
        await lab.delete("dead")
        await lab.until(lambda: not lab.hardware(), "nothing is left")
        await lab.clock.sleep(5.0)
        assert await claims(lab) == []

    in_lab(scenario)


def test_two_pods_of_two_nodes_with_one_claim_run_one_after_the_other(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("c", profile("3g.20gb")), "default")
        await users(lab, "c", "first", nodeSelector={HOSTNAME_LABEL: "node-1"})
        await lab.running("first")
        await users(lab, "c", "second", nodeSelector={HOSTNAME_LABEL: "node-2"})
        await lab.clock.sleep(60.0)
        assert not lab.node_of("second")
        found = await why(lab, "second")
        assert found.verdict == "waits: its claim c is allocated on node node-1, and its node selector names node-2"
        assert "it runs once no other pod uses the claim: kubectl describe resourceclaim -n default c" in found.help
        await lab.delete("first")
        await lab.until(lambda: lab.ready("second"), "the second runs on its node", 120.0)
        assert lab.node_of("second") == "node-2"
        await lab.until(lambda: not lab.hardware("node-1"), "the first node is empty")

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")


def test_a_claim_leaves_a_node_that_is_drained(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("c", profile("3g.20gb")), "default")
        await users(lab, "c", "first", "second")
        await lab.running("first", "second")
        home = lab.node_of("first")
        await lab.client.merge_patch(NODES, home, {"spec": {"unschedulable": True}})
        for name in ("first", "second"):
            await lab.client.evict(name, "default", uid=lab.existing_pod(name).metadata.uid)
        await lab.until(lambda: lab.pod("first") is None and lab.pod("second") is None, "the pods are gone")
        await users(lab, "c", "third")
        await lab.running("third")
        assert lab.node_of("third") != home
        await lab.until(lambda: not lab.hardware(home), "the drained node is empty")

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")


def test_a_claim_leaves_a_node_that_is_gone(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("c", profile("3g.20gb")), "default")
        await users(lab, "c", "first")
        await lab.running("first")
        home = lab.node_of("first")
        await lab.cluster.remove_node(home)
        await lab.until(lambda: lab.pod("first") is None, "its pod is gone", 600.0)
        await users(lab, "c", "second")
        await lab.until(lambda: lab.ready("second"), "the next pod runs elsewhere", 300.0)
        assert lab.node_of("second") != home

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")


def test_a_node_that_reboots_gives_running_claims_their_devices_again(in_lab: InLab) -> None:
    """Kubelet prepares nothing again, and the CDI folder is empty (kubernetes 141433)."""

    async def scenario(lab: VirtualLab) -> None:
        def restarted(name: str) -> bool:
            (status,) = lab.existing_pod(name).status.container_statuses
            return status.restart_count > 0 and lab.ready(name)

        await template(lab, "one", profile("3g.20gb"))
        for name in ("a", "b"):
            entry = {"name": "gpu", "resourceClaimTemplateName": "one"}
            body = claiming_pod(name, entry, restartPolicy="Always", terminationGracePeriodSeconds=0)
            await lab.client.create(PODS.as_dicts(), body, "default")
        await lab.running("a", "b")
        boot = lab.existing_node().status.node_info.boot_id
        lab.cluster.nodes["node-1"].reboot()
        await lab.until(lambda: lab.existing_node().status.node_info.boot_id != boot, "it has rebooted", 300.0)
        await lab.until(lambda: all(map(restarted, ("a", "b"))), "both run again", 300.0)
        assert {*lab.devices("a", "main"), *lab.devices("b", "main")} == set(lab.mig_uuids())
        assert len(lab.mig_uuids()) == 2

    in_lab(scenario)


@pytest.mark.soak
def test_all_claims_of_a_cluster_that_are_released_at_once_are_given_again(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", profile("1g.5gb"))
        for wave in ("a", "b"):
            names = [f"{wave}{number}" for number in range(21)]
            for name in names:
                await claiming(lab, name, "one")
            await lab.until(lambda names=names: all(map(lab.ready, names)), "all run", 300.0)
            assert len({lab.devices(name, "main")[0] for name in names}) == 21
            if wave == "a":
                for name in names:
                    await lab.delete(name)
        for name in names:
            await lab.delete(name)
        await lab.until(lambda: not lab.hardware(), "nothing is left", 120.0)
        assert await claims(lab) == []

    in_lab(scenario, "1*3xA100-40GB")


def life_of_claims(lab_of: InLab, at: int, cluster_type: type[SimulatedCluster], *, after: bool) -> bool:
    """Two pods with one claim and one with another live and die while a process dies once; True if it died."""

    async def scenario(lab: VirtualLab) -> bool:
        await template(lab, "small", profile("1g.5gb"))
        fate = fate_of(lab)
        fate.arm(at, after=after)
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("c", profile("3g.20gb")), "default")
        await claiming(lab, "alone", "small")
        await users(lab, "c", "first", "second")
        await lab.until(lambda: all(map(lab.ready, ("alone", "first", "second"))), "all run", 300.0)
        assert lab.devices("first", "main") == lab.devices("second", "main") != lab.devices("alone", "main")
        assert sorted(each[1] for each in lab.hardware()) == ["1g.5gb", "3g.20gb"]
        for name in ("first", "alone", "second"):
            await lab.delete(name)
            await lab.clock.sleep(1.0)
        await lab.until(lambda: not lab.hardware(), "nothing is left on the card", 300.0)
        await lab.until(lambda: not lab.instaslice().spec.pod_allocation_requests, "nor on record", 300.0)
        found = await lab.client.get(RESOURCE_CLAIMS, "c", "default")
        assert found.status.allocation is None
        return fate.struck

    return bool(lab_of(scenario, cluster_type=cluster_type))


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_controller_may_die_at_any_write_for_claims(in_lab: InLab, when: str) -> None:
    die_at(range(1, 21), lambda at: life_of_claims(in_lab, at, MortalController, after=when == "after"), every=7)


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.soak), "after"])
def test_the_agent_may_die_at_any_call_for_claims(in_lab: InLab, when: str) -> None:
    die_at(range(1, 36), lambda at: life_of_claims(in_lab, at, MortalAgent, after=when == "after"), every=12)


# Faults of NVIDIA's dynamic MIG, by the number of the issue of kubernetes-sigs/dra-driver-nvidia-gpu


def test_883_foreign_instances_and_mig_mode_are_left_alone(in_lab: InLab) -> None:
    """Its start destroys instances that it did not make, and switches MIG mode off."""

    async def scenario(lab: VirtualLab) -> None:
        machine = lab.machine()
        (gpu,) = machine.uuids()
        foreign = machine.create_gpu_instance(gpu, "3g.20gb", 0)
        await lab.kill(AGENT)
        await template(lab, "one", profile("3g.20gb"))
        await claiming(lab, "a", "one")
        await lab.running("a")
        await lab.delete("a")
        await lab.until(lambda: [each.gi_id for each in machine.instances(gpu)] == [foreign], "only it is left")
        (card,) = machine.devices()
        assert card.mig_enabled

    in_lab(scenario)


def test_1055_the_instances_of_a_layout_stay_when_the_node_turns_to_claims(in_lab: InLab) -> None:
    """Its static MIG devices fall through into the clean-up of dynamic ones."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.label("node-2", layout="all-3g.20gb")
        await lab.until(lambda: len(lab.hardware("node-2")) == 2, "the layout is in force", 300.0)
        made = lab.hardware("node-2")
        await template(lab, "one", profile("1g.5gb"))
        await claiming(lab, "a", "one")
        await lab.running("a")
        assert lab.node_of("a") == "node-1"
        await lab.kill(AGENT)
        await lab.clock.sleep(120.0)
        assert lab.hardware("node-2") == made

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")


def test_1092_cards_without_mig_and_cards_with_it_serve_claims_of_one_cluster(in_lab: InLab) -> None:
    """It publishes nothing for an L4 where dynamic MIG is on."""

    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "card", exactly("r0", "gpu.tessera.dev"))
        await template(lab, "slice", profile("3g.20gb"))
        for name in ("card", "slice"):
            await claiming(lab, name, name)
        await lab.running("card", "slice")
        assert lab.devices("card", "main")[0].startswith("GPU-")
        assert lab.devices("slice", "main")[0].startswith("MIG-")

    in_lab(scenario, "1xT4,1xA100-40GB")


def test_1452_a_compute_instance_that_cannot_be_made_leaves_no_gpu_instance(in_lab: InLab) -> None:
    """It does not find the GPU instance again that it has to take back."""

    async def scenario(lab: VirtualLab) -> None:
        machine = lab.machine()
        machine.fail("create_compute_instance", InsufficientResources, times=None)
        await template(lab, "all", profile("7g.40gb"))
        await claiming(lab, "first", "all")
        await lab.clock.sleep(60.0)
        assert not lab.ready("first")
        await lab.delete("first")
        await lab.until(lambda: not lab.hardware(), "nothing is left", 120.0)
        machine.heal()
        await claiming(lab, "next", "all")
        await lab.until(lambda: lab.ready("next"), "the next claim has its slice", 300.0)

    in_lab(scenario)


@pytest.mark.parametrize(
    ("cards", "size"),
    [
        ("A30", "4g.24gb"),
        ("H100-80GB", "7g.80gb"),
        pytest.param("A100-40GB", "7g.40gb", marks=pytest.mark.soak),
        pytest.param("A100-80GB", "7g.80gb", marks=pytest.mark.soak),
    ],
)
def test_1480_the_largest_slice_of_each_model_is_made(in_lab: InLab, cards: str, size: str) -> None:
    """It takes the number of the compute instance's profile from the GPU instance, which an A100 does not have."""

    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "all", profile(size))
        await claiming(lab, "a", "all")
        await lab.running("a")
        assert [each[1] for each in lab.hardware()] == [size]

    in_lab(scenario, f"1x{cards}")


def test_840_a_claim_that_was_never_prepared_leaves_no_entry(in_lab: InLab) -> None:
    """Its checkpoint keeps what it has begun to prepare."""

    async def scenario(lab: VirtualLab) -> None:
        machine = lab.machine()
        machine.fail("create_gpu_instance", InsufficientResources, times=None)
        await template(lab, "all", profile("7g.40gb"))
        for number in range(3):
            await claiming(lab, f"p{number}", "all")
            await lab.clock.sleep(60.0)
            await lab.delete(f"p{number}")
        machine.heal()
        await lab.clock.sleep(120.0)
        await lab.kill(AGENT)
        await claiming(lab, "next", "all")
        await lab.until(lambda: lab.ready("next"), "the next claim has its slice", 300.0)
        assert len(lab.instaslice().spec.pod_allocation_requests) == 1

    in_lab(scenario)
