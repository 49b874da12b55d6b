"""``tessera why`` of what Kueue holds: each kind of waiting has its own sentence, with position and amounts."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.kueue.cluster import IMAGE, KueueCluster, pod_spec, template
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.explain.explanation import Explanation, parse_query
from tessera.explain.query import explain
from tessera.kube.resources import MUTATING_WEBHOOKS, PODS, Resource
from tessera.kueue.objects import ADMISSION_GATE, QUEUE_LABEL, TOPOLOGY_GATE, VERSIONS, Version
from tessera_lab.kueue.workloads import kind


async def why(cluster: KueueCluster, what: str, client: Any = None) -> Explanation:
    """The first answer about an object of the test's namespace."""
    report = await explain(client or cluster.reader, cluster.clock, parse_query(what), cluster.namespace)
    return report.answers[0]


async def becomes(cluster: KueueCluster, what: str, case: str) -> Explanation:
    """The answer, once it is of this case."""

    async def found() -> bool:
        try:
            return (await why(cluster, what)).case == case
        except IndexError:
            return False

    await cluster.until(found, f"{what} is explained as {case}")
    return await why(cluster, what)


async def runs(cluster: KueueCluster, name: str) -> None:
    async def found() -> bool:
        return name in await cluster.running()

    await cluster.until(found, f"{name} runs")


@pytest.mark.parametrize("version", VERSIONS)
def test_each_kind_of_waiting_has_its_sentence(with_kueue: Callable[..., None], version: Version) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        await cluster.pod("first")
        await runs(cluster, "first")

        await cluster.pod("second")
        await cluster.clock.sleep(2)
        await cluster.pod("third", "1g.5gb")
        full = await becomes(cluster, "second", "kueue-quota")
        assert full.verdict == (
            "waits in Kueue for quota; it needs 20Gi more of GPU memory than the queue has free in flavor gpu-memory"
        )
        assert "it requests 3g.20gb" in full.facts
        assert "it is number 1 of 2 in that queue, and number 1 among all queues that share its quota" in full.facts
        behind = await becomes(cluster, "third", "kueue-quota")
        assert "it needs 5Gi more of GPU memory" in behind.verdict
        assert any(fact.startswith("it is number 2 of 2 in that queue") for fact in behind.facts)

        await cluster.job("large", template("3g.20gb"), parallelism=3)
        never = await becomes(cluster, "job/large", "kueue-never")
        assert never.verdict == (
            "can never run in its queue; it asks for 60Gi of GPU memory, and the queue has 20Gi at most"
        )

        await cluster.pod("lost", labels={QUEUE_LABEL: "nowhere"})
        lost = await becomes(cluster, "lost", "kueue-missing-queue")
        assert lost.verdict == "waits in Kueue for a queue that does not exist: LocalQueue nowhere"

        await cluster.pod("member", group="pair", count=2)
        await becomes(cluster, "member", "kueue-incomplete-group")
        await cluster.clock.sleep(3)  # events come later
        alone = await why(cluster, "member")
        assert alone.verdict.startswith("waits for the other pods of its group pair; ")
        assert "1 of 2 pods exist" in alone.facts
        assert any("fewer runnable pods than expected" in fact for fact in alone.facts)

        broken = {"metadata": {"name": "broken"}, "spec": {"clusterQueue": "none"}}
        queues = kind("localqueues", "LocalQueue", version, namespaced=True)
        await cluster.client.create(queues, broken, cluster.namespace)
        await cluster.pod("stranded", labels={QUEUE_LABEL: "broken"})
        stranded = await becomes(cluster, "stranded", "kueue-missing-queue")
        assert stranded.verdict.endswith("ClusterQueue none")

    with_kueue(story, version=version)


def test_a_queue_that_does_not_cover_slices_is_told_with_the_remedy(with_kueue: Callable[..., None]) -> None:
    """Kueue's default configuration."""

    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        await cluster.pod("single")
        found = await becomes(cluster, "single", "kueue-uncovered")
        assert found.verdict.startswith("can never run in its queue, which does not cover ")
        assert any("tessera kueue config" in step for step in found.help)

    with_kueue(story, resources={})


def test_a_queue_that_does_not_cover_whole_cards_is_told_with_another_remedy(with_kueue: Callable[..., None]) -> None:
    """No setting of Kueue for the memory of slices helps there."""

    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        template = {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
        await cluster.job("whole", {"spec": {**template, "restartPolicy": "Never"}})
        found = await becomes(cluster, "job/whole", "kueue-uncovered")
        assert found.verdict == "can never run in its queue, which does not cover nvidia.com/gpu"
        assert "adds nvidia.com/gpu to spec.resourceGroups" in found.help[0]
        assert not any("tessera kueue config" in step for step in found.help)

    with_kueue(story)


def test_what_the_admission_check_did_is_told(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(160, checked=True)
        waiting = becomes(cluster, "first", "kueue-stopped-queue")
        await cluster.pod("first", "7g.40gb")
        assert "ClusterQueue team-a" in (await waiting).verdict
        await runs(cluster, "first")
        await cluster.pod("second", "7g.40gb")
        check = await becomes(cluster, "second", "kueue-check")
        assert check.verdict == "has its quota and waits for an admission check of Kueue: packable"
        await cluster.clock.sleep(3)
        check = await why(cluster, "second")
        assert any(fact.startswith("Kueue says: packable: there is no room (7g.40gb): ") for fact in check.facts)
        assert not any("sent it back" in fact for fact in check.facts)
        back = await becomes(cluster, "second", "kueue-sent-back")
        assert back.verdict.startswith("was sent back by Kueue and counts again in ")
        assert any("there is no room (7g.40gb)" in fact for fact in back.facts)
        again = await becomes(cluster, "second", "kueue-check")
        assert [fact for fact in again.facts if fact.startswith("Kueue sent it back before: ")]
        assert not any("QuotaReserved" in fact for fact in again.facts)
        both: Any = template("7g.40gb")
        both["spec"]["containers"].append({**both["spec"]["containers"][0], "name": "more"})
        await cluster.client.delete(MUTATING_WEBHOOKS, "tessera-webhook")  # it would refuse the Job
        await cluster.job("never", both)
        ended = await becomes(cluster, "job/never", "kueue-deactivated")
        assert any("even empty" in fact for fact in ended.facts)
        assert any('"active":true' in step for step in ended.help)

    with_kueue(story, nodes="1xA100-40GB")


def test_a_pod_at_tesseras_gate_is_told_of_the_coming_eviction_and_of_the_author_of_its_node_selector(
    with_kueue: Callable[..., None],
) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(80, labels={"kubernetes.io/os": "linux"})
        await cluster.pod("first", "7g.40gb")
        await runs(cluster, "first")
        await cluster.pod("second", "7g.40gb")
        found = await becomes(cluster, "second", "full")
        assert any(
            fact.startswith("Kueue admitted it ") and "evicts it if its pods are not ready in time" in fact
            for fact in found.facts
        )
        assert "its node selector kubernetes.io/os=linux is that of Kueue's flavor gpu-memory" in found.facts

    with_kueue(story, nodes="1xA100-40GB", ready_timeout=600.0)


RULES: Resource[dict[str, Any]] = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role", True, dict)
BINDINGS: Resource[dict[str, Any]] = Resource(
    "rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True, dict
)


async def grant(cluster: KueueCluster, name: str, *rules: tuple[str, str]) -> None:
    """Lets a user read these kinds in the test's namespace."""
    made = [{"apiGroups": [group], "resources": [plural], "verbs": ["get", "list"]} for group, plural in rules]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]
    await cluster.client.create(RULES, {"metadata": {"name": name}, "rules": made}, cluster.namespace)
    binding = {"metadata": {"name": name}, "roleRef": role, "subjects": subjects}
    await cluster.client.create(BINDINGS, binding, cluster.namespace)


def test_missing_rights_are_told(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        await cluster.pod("first")
        await runs(cluster, "first")
        await cluster.pod("second")
        await becomes(cluster, "second", "kueue-quota")
        await grant(cluster, "jane", ("", "pods"), ("", "events"))
        jane = cluster.as_user("jane")
        found = await why(cluster, "second", jane)
        assert found.case == "kueue-unreadable"
        assert any("workloads.kueue.x-k8s.io" in fact for fact in found.facts)
        await grant(cluster, "joe", ("", "pods"), ("kueue.x-k8s.io", "workloads"), ("kueue.x-k8s.io", "localqueues"))
        joe = cluster.as_user("joe", positions=False)
        found = await why(cluster, "second", joe)
        assert found.case == "kueue-quota"
        assert any("localqueues/pendingworkloads.visibility.kueue.x-k8s.io" in fact for fact in found.facts)

    with_kueue(story, version="v1beta2")


def test_a_gate_of_kueue_where_kueue_is_not_installed(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("a", {"nvidia.com/mig-1g.5gb": 1}, schedulingGates=[{"name": ADMISSION_GATE}])
        report = await explain(lab.client, lab.clock, parse_query("a"), "default")
        assert report.answers[0].case == "kueue-not-installed"

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_pod_whose_place_in_a_topology_is_still_chosen(with_kueue: Callable[..., None]) -> None:
    """A pod whose second gate nobody removes: its Workload is admitted, and belongs to another object."""

    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(80)
        await cluster.job("owner", template("1g.5gb"))

        async def made() -> bool:
            return len(await cluster.pods()) == 1

        await cluster.until(made, "the Job's pod exists")
        (first,) = await cluster.pods()
        held = {
            "metadata": {"name": "held", "ownerReferences": first["metadata"]["ownerReferences"]},
            "spec": {**pod_spec("1g.5gb"), "schedulingGates": [{"name": TOPOLOGY_GATE}]},
        }
        held["spec"]["containers"][0]["image"] = IMAGE
        await cluster.client.create(PODS.as_dicts(), held, cluster.namespace)
        assert (await why(cluster, "held")).case == "kueue-topology"

    with_kueue(story, version="v1beta2")
