"""``tessera why`` asked of a whole cluster: through the API server, with the rights of the one who asks."""

import json
from typing import Any

import pytest
from tests.support.device_claims import claim, exactly
from tests.support.partly_down import PartlyDownTransport
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.names import DEVICE_ACCESS_LABEL
from tessera.dashboard.view.cluster_map import make_map
from tessera.dra.claims import RESOURCE_CLAIMS
from tessera.explain.explanation import ExplanationReport, parse_query, report_lines
from tessera.explain.query import explain
from tessera.kube.client import Client
from tessera.kube.errors import InternalError, NotFound
from tessera.kube.requests import Request, Response
from tessera.kube.resources import DAEMONSETS, DEPLOYMENTS, JOBS, NAMESPACES, NODES, RESOURCE_QUOTAS
from tessera.kube.resources.meta import Resource
from tessera.nvml.errors import UnknownNvmlError
from tessera.observe.cluster_reading import read_cluster
from tessera.observe.queue_reading import read_queue
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.cluster.cluster import ADMIN

ONE = {"nvidia.com/mig-1g.5gb": 1}
WHOLE = {"nvidia.com/mig-7g.40gb": 1}


async def why(lab: VirtualLab, what: str, client: Any = None) -> ExplanationReport:
    return await explain(client or lab.client, lab.clock, parse_query(what), "default")


async def case(lab: VirtualLab, what: str) -> str:
    return (await why(lab, what)).answers[0].case


def test_the_29th_pod_is_told_who_is_in_its_way(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        names = [f"p{n}" for n in range(28)]
        for name in names:
            await lab.create(name, ONE)
        await lab.running(*names)
        await lab.create("late", ONE)
        await lab.until(lambda: lab.phase("late") == "Pending", "it exists")
        (found,) = (await why(lab, "late")).answers
        assert found.case == "full"
        (fact,) = [each for each in found.facts if "4 cards on 1 node can make it" in each]
        assert "28 of their 32 memory slots are in use or promised" in fact
        (owner,) = [name for name in names if f"pod default/{name} " in found.help[0]]

        await lab.delete(owner)
        await lab.running("late")
        assert await case(lab, "late") == "runs"

    in_lab(scenario)


def test_a_pod_while_its_slice_is_made_and_when_it_has_ended(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("slow", ONE, command="sleep 5")
        await lab.until(lambda: lab.node_of("slow"), "it is bound")
        assert await case(lab, "slow") == "slice-being-made"
        await lab.running("slow")
        assert await case(lab, "slow") == "runs"
        await lab.until(lambda: lab.phase("slow") == "Succeeded", "it ends")
        assert await case(lab, "slow") == "finished"

    in_lab(scenario, slice_seconds=60)


def test_a_pod_with_several_cards_is_told_how_they_are_joined(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.becomes({"nvidia.com/gpu": 4})
        for name, cards in (("pair", 2), ("single", 1)):
            await lab.create(name, {"nvidia.com/gpu": cards})
            await lab.running(name)
        await lab.clock.sleep(15.0)  # the agent's page follows
        pair, single = [(await why(lab, name)).answers[0].facts for name in ("pair", "single")]
        assert "its 2 cards are joined by 12 NVLinks (NV12): tessera topo pair -n default" in pair
        assert not [each for each in single if "joined" in each]
        page = await explain(lab.client, lab.clock, parse_query("pair"), "default", joined=False)
        assert not [each for each in page.answers[0].facts if "joined" in each], "the pod's sheet says it already"

    in_lab(scenario, mig_config="", pages=True)


def test_a_card_that_refuses_says_so_in_nvmls_words(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        lab.machine().fail("create_gpu_instance", UnknownNvmlError, times=None)
        await lab.create("a", ONE)
        await lab.until(lambda: lab.node_of("a"), "it is bound")
        await lab.until(lambda: lab.events_of("a", "SliceFailed"), "the agent says so")
        (found,) = (await why(lab, "a")).answers
        assert found.case == "slice-failed"
        assert lab.events_of("a", "SliceFailed")[-1].message in found.verdict

    in_lab(scenario)


def test_a_controller_that_was_scaled_to_nothing(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("a", WHOLE)
        await lab.running("a")
        await lab.client.scale(DEPLOYMENTS, "tessera-controller", "tessera-system", 0)
        await lab.clock.sleep(120)
        await lab.create("b", WHOLE)
        await lab.until(lambda: lab.phase("b") == "Pending", "it exists")
        assert await case(lab, "b") == "no-controller"

    in_lab(scenario)


def test_a_cordoned_node_is_named(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.merge_patch(NODES, "node-1", {"spec": {"unschedulable": True}})
        await lab.create("a", ONE)
        await lab.until(lambda: lab.events_of("a", "SliceWaiting"), "it is planned")
        (found,) = (await why(lab, "a")).answers
        assert found.case == "no-node"
        assert found.help == ("open the node again: kubectl uncordon node-1",)
        with pytest.raises(NotFound) as missing:
            await explain(lab.client, lab.clock, parse_query("node/nod-1"), "default")
        assert missing.value.__notes__ == ["The cluster has no node of that name; did you mean node-1?"]

    in_lab(scenario)


def test_an_update_that_waits_for_its_own_old_pod_until_the_deployment_lets_it_go(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        web = deployment("web", 1, "7g.40gb")
        await lab.client.create(DEPLOYMENTS.as_dicts(), web, "default")
        await lab.until(lambda: [pod.status.phase for pod in lab.pods.cache.values()] == ["Running"], "it runs")
        (first,) = [pod.metadata.name for pod in lab.pods.cache.values()]
        template = {"metadata": {"annotations": {"now": "1"}}}
        await lab.client.merge_patch(DEPLOYMENTS, "web", {"spec": {"template": template}}, "default")
        await lab.until(lambda: any(lab.events_of(name, "SliceWaiting") for name in names(lab)), "the new pod waits")
        (second,) = [each for each in names(lab) if each != first]
        for what in (second, "deployment/web"):
            (found,) = [each for each in (await why(lab, what)).answers if each.case != "runs"]
            assert found.case == "own-rollout"
            assert "an old pod of its own Deployment holds what it needs" in found.verdict
            assert any(f"the old pod is default/{first}" in fact for fact in found.facts)
        patch = found.help[0].partition(" -p ")[2].strip("'")
        await lab.client.merge_patch(DEPLOYMENTS, "web", json.loads(patch), "default")
        await lab.until(lambda: names(lab) == [second] and lab.phase(second) == "Running", "the update goes on")

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_daemon_set_whose_pods_wait_and_one_whose_pods_are_refused(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("holder", WHOLE)
        await lab.running("holder")
        cards, watcher = deployment("cards", 1, "7g.40gb"), deployment("watcher", 1)
        (programs,) = watcher["spec"]["template"]["spec"]["containers"]
        programs |= {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], "resources": {}}
        for made in (cards, watcher):
            del made["spec"]["replicas"]
            await lab.client.create(DAEMONSETS.as_dicts(), made, "default")
        await lab.until(lambda: any(lab.events_of(name, "SliceWaiting") for name in names(lab)), "the pod waits")
        await lab.clock.sleep(5)
        found = await why(lab, "ds/cards")
        assert found.summary == "it should have 1 pod: 1 does not run"
        assert found.answers[0].case == "full"
        refused = await why(lab, "daemonset/watcher")
        assert refused.summary == "it should have 1 pod: 1 cannot be created"
        assert refused.answers[0].case == "device-access"

    in_lab(scenario, nodes="1xA100-40GB")


def names(lab: VirtualLab) -> list[str]:
    return sorted(pod.metadata.name for pod in lab.pods.cache.values())


def test_a_deployment_whose_quota_is_used_up(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        quota = {"metadata": {"name": "gpu"}, "spec": {"hard": {"requests.nvidia.com/mig-1g.5gb": "2"}}}
        await lab.client.create(RESOURCE_QUOTAS.as_dicts(), quota, "default")
        await lab.client.create(DEPLOYMENTS.as_dicts(), deployment("web", 3), "default")
        running = "its pods run"
        await lab.until(lambda: sum(p.status.phase == "Running" for p in lab.pods.cache.values()) == 2, running)
        await lab.clock.sleep(1)
        found = await why(lab, "deployment/web")
        assert found.summary == "it should have 3 pods: 2 run, 1 cannot be created"
        assert found.answers[0].case == "quota"
        (fact,) = [each for each in found.answers[0].facts if "quota gpu" in each]
        assert "2 of 2 of requests.nvidia.com/mig-1g.5gb used" in fact
        assert "nothing is left" in fact

    in_lab(scenario)


def test_a_deployment_and_a_job_whose_pods_would_take_gpus_past_kubernetes(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        chooses = {"name": "c", "image": "e.com/a:1", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
        web = deployment("web", 2)
        web["spec"]["template"]["spec"]["containers"] = [chooses]
        await lab.client.create(DEPLOYMENTS.as_dicts(), web, "default")
        spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [chooses]}}}
        await lab.client.create(JOBS.as_dicts(), {"metadata": {"name": "train"}, "spec": spec}, "default")
        await lab.clock.sleep(5)
        for what in ("deployment/web", "job/train"):
            found = (await why(lab, what)).answers[0]
            assert found.case == "device-access"
            assert found.facts[0].startswith("container c chooses its GPUs itself")
            assert "kubectl label namespace default tessera.dev/device-access=allowed" in found.help[1]
        await lab.client.merge_patch(NAMESPACES, "default", {"metadata": {"labels": {DEVICE_ACCESS_LABEL: "allowed"}}})
        await lab.until(lambda: any(p.metadata.name.startswith("web") for p in lab.pods.cache.values()), "it may now")

    in_lab(scenario)


def test_a_job_that_admission_refuses(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        spec = {"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never", "containers": [container("1g.5g")]}}}
        await lab.client.create(JOBS.as_dicts(), {"metadata": {"name": "train"}, "spec": spec}, "default")
        await lab.clock.sleep(5)
        found = await why(lab, "job/train")
        assert [answer.case for answer in found.answers] == ["refused"]
        assert "Did you mean nvidia.com/mig-1g.5gb?" in found.answers[0].facts[0]

    in_lab(scenario)


def test_somebody_who_may_only_see_a_namespace(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for kind, body in reader("dev").items():
            await lab.client.apply(rbac(kind), "reader", body, "default")
        await lab.create("first", WHOLE)
        await lab.running("first")
        await lab.create("a", WHOLE)
        await lab.until(lambda: lab.events_of("a", "SliceWaiting"), "it is planned")
        client = lab.cluster.client("dev", UserInfo(name="dev", groups=("system:authenticated",)))
        (found,) = (await why(lab, "a", client)).answers
        assert found.case == "held"
        assert any("event SliceWaiting" in fact for fact in found.facts)
        assert any(fact.startswith("you may not list instaslices, leases, nodes, pods") for fact in found.facts)
        assert {entry.verb for entry in lab.cluster.server.audit if entry.user == "dev"} <= {"get", "list"}

    in_lab(scenario, nodes="1xA100-40GB")


def container(profile: str) -> dict[str, Any]:
    limits = {f"nvidia.com/mig-{profile}": 1}
    return {"name": "c", "image": "busybox", "command": ["sleep", "infinity"], "resources": {"limits": limits}}


def deployment(name: str, replicas: int, profile: str = "1g.5gb") -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container(profile)]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


def rbac(kind: str) -> Resource[dict[str, Any]]:
    return Resource("rbac.authorization.k8s.io", "v1", f"{kind.lower()}s", kind, True, dict[str, Any])


def reader(user: str) -> dict[str, dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    rule = {"apiGroups": [""], "resources": ["pods", "events", "resourcequotas"], "verbs": ["get", "list"]}
    return {
        "Role": {"rules": [rule]},
        "RoleBinding": {
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "reader"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
    }


class CountingTransport(InProcessTransport):
    """Notes the path of each request."""

    def __init__(self, lab: VirtualLab) -> None:
        super().__init__(lab.cluster.server, ADMIN)
        self.paths: list[str] = []

    async def request(self, request: Request) -> Response:
        self.paths.append(request.path)
        return await super().request(request)


def test_what_claims_depend_on_is_read_for_pods_with_claims_alone(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        transport = CountingTransport(lab)
        client = Client(transport, field_manager="test", clock=lab.clock)
        body = claim("c", exactly("x", "no-such-class"))
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), body, "default")
        await lab.create("by-limits", ONE)
        await lab.create("by-claims", {}, resourceClaims=[{"name": "x", "resourceClaimName": "c"}])
        await lab.running("by-limits")
        await why(lab, "by-limits", client)
        assert [each for each in transport.paths if "resource.k8s.io" in each] == []
        before = len(transport.paths)
        (found,) = (await why(lab, "by-claims", client)).answers
        assert "there is no DeviceClass no-such-class, which claim default/c names" in found.facts
        kinds = ["deviceclasses", "resourceclaims", "resourceslices", "resourceslices"]
        asked = [each.rpartition("/")[2] for each in transport.paths[before:] if "resource.k8s.io" in each]
        assert sorted(each.partition("?")[0] for each in asked) == kinds
        (found,) = (await why(lab, "claim/c", client)).answers
        assert found.case == "no-class"

    in_lab(scenario)


def test_what_the_api_server_does_not_answer_is_named_and_the_rest_is_explained(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("runs", WHOLE)
        await lab.running("runs")
        await lab.create("waits", {"nvidia.com/mig-7g.40gb": 4})
        await lab.until(lambda: lab.phase("waits") == "Pending", "it exists")
        transport = PartlyDownTransport(lab.cluster.server, ADMIN)
        client = Client(transport, field_manager="test", clock=lab.clock)
        assert (await why(lab, "waits", client)).unread == ""
        for kind in ("pods", "nodes", "instaslices", "leases", "events", "resourcequotas", "namespaces", "queues"):
            transport.down = kind
            for what in ("runs", "waits"):
                found = await why(lab, what, client)
                lines = list(report_lines(found))
                assert found.unread.startswith(f"{kind} could not be read: ")
                assert f"etcd: {kind}" in lines[-1]
                assert not any(f"you may not list {kind}" in line for line in lines), "it may"
                assert (found.answers[0].case == "runs") is (what == "runs")
        transport.down = "pods"
        assert (await why(lab, "node/node-1", client)).unread.startswith("pods could not be read")

        transport.down = "nodes"
        assert "nodes could not be read" in make_map(await read_cluster(client, partly=True)).note
        transport.down = "pods"
        cards = make_map(await read_cluster(client, partly=True))
        assert [len(each.cards) for each in cards.nodes] == [4], "those on record"
        assert "pods, the agents' pods could not be read" in cards.note
        with pytest.raises(InternalError):
            await read_cluster(client)
        told = await read_queue(client)
        assert isinstance(told, str)
        assert told.startswith("the controller's pods could not be read: ")

    in_lab(scenario)
