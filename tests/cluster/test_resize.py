"""A pod's container starts with a slice that another pod lends it: same pod, same address, its own slice kept."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from tests.support.mortal_process import MortalAgent, MortalController, die_at, fate_of
from tests.support.virtual_lab import InLab, Scenario, VirtualLab, manifest

from tessera.api.names import LENDS_ANNOTATION, QUOTA_RESOURCE
from tessera.api.pod_annotations import CHOSEN, MEMORY
from tessera.cli.base.explaining import explain_as_user
from tessera.cli.resize import begin, end
from tessera.explain.explanation import parse_query
from tessera.kube.errors import Forbidden
from tessera.kube.resources import PODS, Resource
from tessera.text import UserError
from tessera_lab.kubelet.context import InProcessPlugins

QUOTAS: Resource[dict[str, Any]] = Resource("", "v1", "resourcequotas", "ResourceQuota", True, dict)
#: More writes of the controller, and calls of the agent, than a loan needs; the tests prove that they are.
WRITES, CALLS = 9, 100


async def create(lab: VirtualLab, name: str, memory: str, seconds: int = 60, **spec: Any) -> None:
    """A pod that states its memory, and whose container ends, and starts again, every so many seconds."""
    pod = manifest(name, {}, command=f"sleep {seconds}", **{"restartPolicy": "Always", **spec})
    meta = {"name": name, "annotations": {MEMORY: memory}}
    await lab.client.create(PODS.as_dicts(), pod | {"metadata": meta}, "default")
    await lab.running(name)


async def resize(lab: VirtualLab, memory: str, wait: float | None = 30.0) -> None:
    await begin(lab.client, ("default", "svc"), memory, "registry.k8s.io/pause:3.10", wait)


def profile_of(lab: VirtualLab, pod: str) -> str:
    """The profile of the slice that a pod's container sees; empty if it sees none."""
    machine = lab.machine()
    found = lab.environment(pod)["NVIDIA_VISIBLE_DEVICES"]
    there = [each for gpu in machine.uuids() for each in machine.instances(gpu) if each.compute_instances]
    return next((each.profile for each in there if each.compute_instances[0].mig_uuid == found), "")


def restarts(lab: VirtualLab) -> int:
    return lab.existing_pod("svc").status.container_statuses[0].restart_count


async def explain(lab: VirtualLab, pod: str) -> Sequence[str]:
    found, _ = await explain_as_user(lab.client, parse_query(pod), "default")
    return found.answers[0].facts


def test_the_next_start_has_the_other_slice_and_the_pod_stays(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await create(lab, "svc", "5Gi")
        before, own = lab.existing_pod("svc"), profile_of(lab, "svc")
        await resize(lab, "20Gi")
        await lab.running("svc-slice")
        assert profile_of(lab, "svc") == own  # the process that runs keeps its slice
        assert lab.environment("svc-slice", "slice")["NVIDIA_VISIBLE_DEVICES"] == "void"
        lends = "pod svc-slice lends it nvidia.com/mig-3g.20gb, beside its own; its container"
        assert f"{lends} gets it at its next start" in await explain(lab, "svc")
        await lab.until(lambda: profile_of(lab, "svc") == "3g.20gb", "the container has the lent slice")
        assert f"{lends} has had it since its last start" in await explain(lab, "svc")
        after = lab.existing_pod("svc")
        assert (after.metadata.uid, after.status.pod_ip) == (before.metadata.uid, before.status.pod_ip)
        told = "its container starts with 3g.20gb, which pod svc-slice lends it"
        await lab.until(lambda: lab.told_times("svc", "SliceLent", told) == 1, "an event says so")
        pods = lab.cluster.nodes["node-1"].pods
        began = restarts(lab)
        assert pods.run_command("default", "svc", "c0", ["kill", "1"]).code == 0
        await lab.until(lambda: restarts(lab) > began, "svc was ended by hand")
        await lab.until(lambda: profile_of(lab, "svc") == "3g.20gb", "it keeps the lent slice")
        began = restarts(lab)
        await end(lab.client, "default", "svc")  # nobody pays for the slice any longer, so no process may keep it
        await lab.until(lambda: restarts(lab) > began and profile_of(lab, "svc") == own, "it has its own slice again")
        await lab.until(lambda: len(lab.hardware()) == 1, "the lent slice is gone")

    in_lab(scenario, "1xA100-40GB")


def test_a_container_without_a_process_on_the_lent_slice_ends_with_the_loan_too(in_lab: InLab) -> None:
    """It may open the slice's device files, which are those of the next pod's slice there."""

    async def scenario(lab: VirtualLab) -> None:
        await create(lab, "svc", "5Gi", seconds=60)
        own = profile_of(lab, "svc")
        await resize(lab, "20Gi")
        await lab.until(lambda: profile_of(lab, "svc") == "3g.20gb", "svc has the lent slice")
        lent = lab.environment("svc")["NVIDIA_VISIBLE_DEVICES"]
        processes = lab.cluster.nodes["node-1"].processes
        assert processes is not None
        (container,) = (each for each in processes.containers if each.devices == (lent,))
        container.stop()  # it waits for its next request, say
        began = restarts(lab)
        await end(lab.client, "default", "svc")

        def is_over() -> bool:
            there = lent in lab.mig_uuids()
            assert there or lab.environment("svc")["NVIDIA_VISIBLE_DEVICES"] != lent, "it has a slice that is gone"
            return not there and restarts(lab) > began and profile_of(lab, "svc") == own

        await lab.until(is_over, "svc has its own slice, and the lent one is gone")

    in_lab(scenario, "1xA100-40GB")


def test_what_cannot_be_done_is_said_and_changes_nothing(in_lab: InLab) -> None:
    async def refused(lab: VirtualLab, text: str, memory: str = "20Gi") -> None:
        with pytest.raises(UserError, match=text):
            await resize(lab, memory)
        await lab.until(lambda: lab.pod("svc-slice") is None, "the lender is gone")

    async def scenario(lab: VirtualLab) -> None:
        await create(lab, "svc", "10Gi")
        await refused(lab, "is no bigger. Kubernetes counts what a pod requests", "5Gi")
        await refused(lab, "gets no nvidia.com/mig-7g.40gb on node node-1: .*; nothing has changed", "40Gi")
        quota = {"metadata": {"name": "q"}, "spec": {"hard": {f"requests.{QUOTA_RESOURCE}": "25Gi"}}}
        await lab.client.create(QUOTAS, quota, "default")
        await lab.clock.sleep(10)
        with pytest.raises(Forbidden, match="exceeded quota: q"):
            await resize(lab, "20Gi")
        await lab.client.delete(QUOTAS, "q", "default")
        await resize(lab, "40Gi", None)  # it waits in the queue, as any pod
        await lab.until(lambda: lab.gates("svc-slice"), "the lender waits")
        with pytest.raises(UserError, match="exists already; give its slice back first: tessera resize svc --back"):
            await resize(lab, "20Gi")
        held: dict[str, list[str]] = {"finalizers": ["example.com/accounting"]}
        await lab.client.merge_patch(PODS, "svc-slice", {"metadata": held}, "default")
        await end(lab.client, "default", "svc")
        with pytest.raises(UserError, match="svc-slice is still being deleted: run the command again once it is gone"):
            await resize(lab, "20Gi")
        await lab.client.merge_patch(PODS, "svc-slice", {"metadata": {"finalizers": None}}, "default")
        await lab.delete("svc")
        await lab.until(lambda: lab.pod("svc") is None and lab.pod("svc-slice") is None, "both are gone")
        await create(lab, "svc", "10Gi", restartPolicy="Never")
        await refused(lab, "restartPolicy Never")

    in_lab(scenario, "1xA100-40GB")


def test_a_lender_that_its_node_refuses_as_the_agent_restarts_is_to_be_requested_again(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await create(lab, "svc", "5Gi", seconds=600)
        request = asyncio.create_task(resize(lab, "20Gi"))
        while not request.done():
            await lab.kill("tessera-agent")
            await lab.clock.sleep(1)
        again = "refuses pods while its agent restarts; again: tessera resize svc 20Gi -n default"
        with pytest.raises(UserError, match=f"the node refused its lender: .*; nothing has changed. A node {again}$"):
            await request
        await lab.until(lambda: lab.pod("svc-slice") is None, "the lender is gone")
        await lab.clock.sleep(60)
        await resize(lab, "20Gi")

    in_lab(scenario, "1xA100-40GB")


def test_an_annotation_that_names_what_no_container_requests_is_an_error(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await create(lab, "svc", "10Gi")
        forged = {"metadata": {"annotations": {CHOSEN: "nvidia.com/mig-7g.40gb"}}}
        await lab.client.merge_patch(PODS, "svc", forged, "default")
        with pytest.raises(UserError, match=f"no container of pod default/svc requests .*7g.40gb, .* {CHOSEN} names"):
            await resize(lab, "20Gi")

    in_lab(scenario, "1xA100-40GB")


def test_a_command_that_is_ended_while_it_waits_leaves_no_lender(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await create(lab, "svc", "10Gi")
        waits = asyncio.create_task(resize(lab, "40Gi", 1_000.0))
        await lab.until(lambda: lab.gates("svc-slice"), "the lender waits")
        waits.cancel()
        with suppress(asyncio.CancelledError):
            await waits
        await lab.until(lambda: lab.pod("svc-slice") is None, "the lender is gone")

    in_lab(scenario, "1xA100-40GB")


def test_no_slice_has_two_users_whatever_a_tenant_writes(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await create(lab, "svc", "5Gi", seconds=30)
        own = profile_of(lab, "svc")
        to = lab.existing_pod("svc").metadata
        await create(lab, "spy", "20Gi", seconds=10_000)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "svc", "uid": to.uid}
        forged = {"metadata": {"annotations": {LENDS_ANNOTATION: "svc"}, "ownerReferences": [owner]}}
        await lab.client.merge_patch(PODS, "spy", forged, "default")  # its container has the slice already
        began = restarts(lab)
        await lab.until(lambda: restarts(lab) > began + 1 and lab.ready("svc"), "svc was started again")
        assert (profile_of(lab, "svc"), profile_of(lab, "spy")) == (own, "3g.20gb")
        await lab.delete("spy")
        await resize(lab, "20Gi")
        await lab.until(lambda: profile_of(lab, "svc") == "3g.20gb", "svc has the lent slice")
        plain = {"metadata": {"annotations": {LENDS_ANNOTATION: None}}}
        await lab.client.merge_patch(PODS, "svc-slice", plain, "default")  # it lends nothing from now on
        assert lab.environment("svc-slice", "slice")["NVIDIA_VISIBLE_DEVICES"] == "void"
        await lab.until(lambda: profile_of(lab, "svc") == own, "svc has its own slice again")

    in_lab(scenario, "1xA100-40GB")


@pytest.mark.parametrize("dies", [0, 1, 2])
def test_the_lender_of_a_pod_that_its_node_evicted_ends(in_lab: InLab, dies: int) -> None:
    """Whether the controller dies before or after its one write."""

    async def scenario(lab: VirtualLab) -> None:
        await create(lab, "svc", "5Gi", seconds=600)
        await resize(lab, "20Gi")
        await lab.running("svc-slice")
        if dies:
            fate_of(lab).arm(1, after=dies == 2)
        evicted = {"status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}}
        await lab.client.merge_patch(PODS, "svc", evicted, "default", subresource="status")
        await lab.until(lambda: lab.pod("svc-slice") is None, "the lender is gone")
        assert lab.existing_pod("svc").status.phase == "Failed"
        await lab.until(lambda: lab.hardware() == [], "no slice is left")
        assert not dies or fate_of(lab).struck

    in_lab(scenario, "1xA100-40GB", cluster_type=MortalController)


@pytest.mark.parametrize("files", [True, False])
def test_a_lent_slice_has_one_user_though_the_agents_journal_is_lost(in_lab: InLab, files: bool) -> None:
    """With the CDI files, or without them too."""

    async def scenario(lab: VirtualLab) -> None:
        await create(lab, "svc", "5Gi", seconds=60)
        own = profile_of(lab, "svc")
        await resize(lab, "20Gi")
        await lab.until(lambda: profile_of(lab, "svc") == "3g.20gb", "svc has the lent slice")
        lent, node = lab.environment("svc")["NVIDIA_VISIBLE_DEVICES"], lab.cluster.nodes["node-1"]
        processes, plugins = node.processes, node.plugins
        assert processes is not None
        assert isinstance(plugins, InProcessPlugins)
        assert plugins.cdi is not None
        (container,) = (each for each in processes.containers if each.devices == (lent,))
        container.stop()  # it has the slice's device files, and runs on without a process there
        journal = plugins.cdi.parent / "node-1-state" / "journal.json"
        await lab.kill("tessera-agent")
        await lab.clock.sleep(0.1)
        journal.unlink()
        for each in plugins.cdi.iterdir() if not files else ():
            each.unlink()
        await lab.until(journal.exists, "the agent is back")
        began = restarts(lab)
        await end(lab.client, "default", "svc")

        def is_over() -> bool:
            there = lent in lab.mig_uuids()
            assert there or lab.environment("svc")["NVIDIA_VISIBLE_DEVICES"] != lent, "it has a slice that is gone"
            return not there and restarts(lab) > began and profile_of(lab, "svc") == own

        await lab.until(is_over, "svc has its own slice, and the lent one is gone")

    in_lab(scenario, "1xA100-40GB")


def a_loan(at: int, *, after: bool) -> Scenario:
    """A loan from its request to its end, while a process of Tessera dies."""

    async def scenario(lab: VirtualLab) -> bool:
        fate = fate_of(lab)
        await create(lab, "svc", "5Gi", seconds=40)
        own = profile_of(lab, "svc")
        fate.arm(at, after=after)
        while profile_of(lab, "svc") != "3g.20gb":
            if lab.phase("svc-slice") in {"", "Failed"}:
                with suppress(UserError):  # kubelet refuses a pod while the agent is dead
                    await resize(lab, "20Gi", None)
            await lab.clock.sleep(1)
        await end(lab.client, "default", "svc")
        await lab.until(lambda: len(lab.hardware()) == 1 and profile_of(lab, "svc") == own, "svc has its own slice")
        fate.armed = False
        await lab.delete("svc")
        await lab.empty()
        return fate.struck

    return scenario


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.soak), "after"])
def test_the_controller_may_die_at_any_write(in_lab: InLab, when: str) -> None:
    def outlives(at: int) -> bool:
        return bool(in_lab(a_loan(at, after=when == "after"), "1xA100-40GB", cluster_type=MortalController))

    die_at(range(1, WRITES + 1), outlives, every=4)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(3))
def test_the_agent_may_die_at_any_nvml_call(in_lab: InLab, part: int) -> None:
    def outlives(at: int) -> bool:
        return bool(in_lab(a_loan(at, after=bool(part % 2)), "1xA100-40GB", cluster_type=MortalAgent))

    die_at(range(part + 1, CALLS + 1, 4), outlives, every=3)
