"""The aggregated API over TLS, behind a simulated API server and its front proxy; and those who are not the proxy."""

import asyncio
import random
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from tests.dashboard.test_past import StandIn, matrix
from tests.observe.conftest import AgentCluster, card, lease
from tests.support.api_clients import in_process_client
from tests.support.api_user import ApiUser, pod
from tests.support.ports import free_port

from tessera.api.nodes.usage import NodeUsage
from tessera.cli.base.connection import CommandError
from tessera.cli.base.tenant_view import read_as_tenant
from tessera.cli.queue import Wanted, lines_of, read
from tessera.clock import SystemClock
from tessera.dashboard.explainer import PAGE_EXPLANATIONS
from tessera.dashboard.in_cluster import API_SERVICE, PageOptions, PageReplica
from tessera.dashboard.past import Prometheus
from tessera.dashboard.view.cluster_map import MAPS
from tessera.dashboard.view.explanations import read_view
from tessera.dashboard.view.objects import GPU_HOURS, RESOURCES, USAGES, WAITING_PODS
from tessera.doctor.manifests import deploy_folder
from tessera.doctor.reading import read_facts
from tessera.forecast.queue_page import ExpectedStart, QueuedPod, QueuePage, SpareSlices, encode_page
from tessera.kube.errors import Forbidden, NotFound, ServiceUnavailable
from tessera.reasons.reason import Blocker, Full
from tessera.signals.page import REQUESTS, Service, SignalsPage
from tessera.usage.record import (
    HOUR,
    OTHER,
    RECORD_KEY,
    RECORD_NAME,
    CardSeconds,
    LeaseSeconds,
    NodeMark,
    Period,
    UsageKey,
    UsageRecord,
    decode_record,
    encode_record,
)
from tessera.usage.report import totals_of_record
from tessera_lab.apiserver.authz.certificates import CertificateAuthority, CertificatePair
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.cluster.front_proxy import FrontProxy

TIMEOUT = 60.0
API = "/apis/view.tessera.dev/v1alpha1"
SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Served:
    """A page's process whose API is behind an API server.

    Attributes:
        admin: requests of an administrator.
        port: the API's port.
    """

    def __init__(self, cluster: AgentCluster, port: int) -> None:
        self.cluster = cluster
        self.port = port
        self.admin = cluster.api

    def user(self, name: str, *groups: str) -> ApiUser:
        """Requests of a user."""
        return ApiUser(self.cluster.server, UserInfo(name=name, groups=(*groups, "system:authenticated")))

    async def allow(self, name: str, namespace: str) -> None:
        """Binds the ClusterRole tessera-view in a namespace."""
        await self.admin("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tessera-view"}
        binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
        await self.admin("POST", f"{RBAC}/namespaces/{namespace}/rolebindings", binding)

    async def until(self, path: str, text: bytes) -> bytes:
        """Asks until the answer has a text."""
        async with asyncio.timeout(TIMEOUT):
            while text not in (answer := await self.admin.raw("GET", path)).body:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.02)
        return answer.body

    async def ask_directly(self, pair: CertificatePair | None, folder: Path, **headers: str) -> int:
        """Status of a request past the API server; 0 if the connection is refused."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if pair is not None:
            (folder / "crt").write_bytes(pair.certificate)
            (folder / "key").write_bytes(pair.key)
            context.load_cert_chain(folder / "crt", folder / "key")
        url = f"https://127.0.0.1:{self.port}{API}/namespaces/team/usages"
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            async with aiohttp.ClientSession() as session, session.get(url, ssl=context, headers=given) as answer:
                return answer.status
        except (aiohttp.ClientError, OSError):
            return 0


def shipped(kind: str, name: str) -> dict[str, Any]:
    import yaml

    files = (deploy_folder() / "options" / "dashboard" / "dashboard.yaml", deploy_folder() / "roles.yaml")
    objects = (each for file in files for each in yaml.safe_load_all(file.read_text(encoding="utf-8")))
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    assert isinstance(found, dict)
    return found


@asynccontextmanager
async def served(prometheus: Prometheus | None = None) -> AsyncIterator[Served]:
    cluster, port, clock = AgentCluster(), free_port(), SystemClock()
    await cluster.begin()
    page = NodeUsage(node="machine-1", cards=(card(),), leases=(lease("alpha"), lease("beta", namespace="other")))
    await cluster.add_agent("machine-1", page)
    proxy = cluster.server.aggregator.call = FrontProxy(lambda *_: ("127.0.0.1", port), clock)
    proxy.announce(cluster.server.core)
    await cluster.api("POST", SERVICES, shipped("APIService", API_SERVICE))
    await cluster.api("POST", f"{RBAC}/clusterroles", shipped("ClusterRole", "tessera-view"))
    options = PageOptions(address="127.0.0.1", port=None, http_port=None, api_port=port, prometheus=prometheus)
    client = in_process_client(cluster.server, clock, "page", "system:masters")
    running = asyncio.create_task(PageReplica(options, client, clock, random.Random(1)).run())
    found = Served(cluster, port)
    try:
        await found.until(API, b"usages")
        await found.until(f"{API}/namespaces/team/usages", b"alpha")
        yield found
    finally:
        running.cancel()
        await asyncio.wait([running])
        await proxy.close()


async def test_a_tenant_sees_all_cards_and_the_names_of_its_namespace() -> None:
    async with served() as view:
        await view.allow("ann", "team")
        client = in_process_client(view.cluster.server, SystemClock(), "ann", "system:authenticated")
        usage = await read_view(client, USAGES, "team")
        (page,) = usage.fleet.nodes
        assert [each.pod if each.namespace == "team" else each.namespace for each in page.leases] == ["alpha", "~"]
        assert page.node.startswith("~")
        (node,) = (await read_view(client, MAPS, "team")).map.nodes
        assert node.cards[0].holders[0].pod == "team/alpha"
        assert node.node == page.node


async def test_a_tenant_sees_its_own_place_in_the_queue_and_no_name_of_a_neighbour() -> None:
    now = SystemClock().now()
    why = Full(("7g.40gb",), frees=(Blocker("other/beta", "machine-1", "7g.40gb"),))
    start = ExpectedStart(p50=now + 240, p90=now + 600, basis="history")
    mine = QueuedPod(
        namespace="team",
        name="train",
        profiles=("7g.40gb",),
        since=now - 60,
        position=2,
        of=2,
        reason="full",
        detail="every card is full for 7g.40gb",
        why=why,
        start=start,
    )
    theirs = QueuedPod(namespace="other", name="hidden", since=now, position=1, of=2)
    async with served() as view:
        spare = SpareSlices(queue="hidden", profile="7g.40gb", free=0, wanted=1)
        await view.cluster.add_controller(QueuePage(leads=True, taken=now, pods=(theirs, mine), spare=(spare,)))
        await view.allow("ann", "team")
        await view.until(f"{API}/namespaces/team/waitingpods", b"train")
        client = in_process_client(view.cluster.server, SystemClock(), "ann", "system:authenticated")
        page = (await read_view(client, WAITING_PODS, "team")).queue
        assert [(row.name, row.position, row.of, row.start) for row in page.pods] == [("train", 2, 2, start)]
        assert [(each.queue[0], each.profile, each.wanted) for each in page.spare] == [("~", "7g.40gb", 1)]
        found = await read(client, Wanted(None, "team"))  # of all, as far as the user may
        _, row, spare_line = lines_of(found)
        assert re.fullmatch(r"Kept spare for services of queue ~[0-9a-f]{8}: 0 of 1 7g.40gb", spare_line)
        assert re.split("  +", row)[:7] == ["train", "7g.40gb", "60s", "2/2", "4m-10m", "history", "full"]
        assert re.fullmatch(r"~/~[0-9a-f]{8} on ~[0-9a-f]{8}", re.split("  +", row)[7])
        assert any("names that begin with ~" in note for note in found.notes)
        text = (await view.user("ann").raw("GET", f"{API}/namespaces/team/waitingpods")).body
        assert not [name for name in (b"beta", b"hidden", b"machine-1", b"other") if name in text]
        assert [row.name for row in (await read(view.cluster.client(), Wanted(None, "team"))).reading.page.pods] == [
            "hidden",
            "train",
        ]


async def test_an_answer_about_the_queue_is_kept_no_longer_than_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """For three seconds, ``tessera queue`` of a tenant lacked a pod of which ``tessera why`` said that it waits."""
    monkeypatch.setattr("tessera.dashboard.view.server._FRESH", 1_000_000.0)
    now = SystemClock().now()
    pods = [QueuedPod(namespace="team", name=name, since=now) for name in ("first", "second")]
    async with served() as view:
        await view.cluster.add_controller(QueuePage(leads=True, taken=now, pods=(pods[0],)))
        await view.allow("ann", "team")
        await view.until(f"{API}/namespaces/team/waitingpods", b"first")
        view.cluster.queue = encode_page(QueuePage(leads=True, taken=now, pods=tuple(pods)))
        await view.until(f"{API}/namespaces/team/waitingpods", b"second")


async def test_a_tenant_sees_the_services_of_its_namespace_and_none_of_a_neighbour() -> None:
    services = [
        Service(namespace=each, kind="Deployment", name=f"of-{each}", wanted=1, values={REQUESTS: 4321.0})
        for each in ("team", "other")
    ]
    async with served() as view:
        await view.cluster.add_controller(QueuePage(leads=True))
        view.cluster.signals = msgspec.json.encode(SignalsPage(leads=True, services=tuple(services), cut=3))
        await view.allow("ann", "team")
        await view.until(f"{API}/namespaces/team/usages", b"of-other")  # an administrator sees all
        client = in_process_client(view.cluster.server, SystemClock(), "ann", "system:authenticated")
        usage = await read_view(client, USAGES, "team")
        assert [(each.key, each.requests) for each in usage.services] == [("team/Deployment/of-team", 4321.0)]
        assert usage.services_note == "3 more services are not shown"
        assert b"of-other" not in (await view.user("ann").raw("GET", f"{API}/namespaces/team/usages")).body


async def test_without_a_controller_services_are_said_to_be_unknown() -> None:
    async with served() as view:
        await view.allow("ann", "team")
        client = in_process_client(view.cluster.server, SystemClock(), "ann", "system:authenticated")
        usage = await read_view(client, USAGES, "team")
        assert (usage.services, usage.services_note) == ((), "services are not known")


async def test_a_tenant_reads_the_gpu_hours_of_the_own_namespace_and_nothing_of_others() -> None:
    period = Period(HOUR, HOUR)
    period.add_cards("A100", CardSeconds(capacity=9999.0))
    for namespace in ("team", "other", OTHER):
        period.add_lease(UsageKey(namespace, f"of-{namespace}", "", "A100"), LeaseSeconds(held=3600.0))
    marks = {"machine-1": NodeMark(2 * HOUR, 2 * HOUR, {"A100": 2})}
    record = UsageRecord(began=HOUR, periods=[period], nodes=marks)
    async with served() as view:
        data = {"metadata": {"name": RECORD_NAME}, "data": {RECORD_KEY: encode_record(record)}}
        await view.allow("ann", "team")
        client = in_process_client(view.cluster.server, SystemClock(), "ann", "system:authenticated")
        with pytest.raises(NotFound, match='"cluster" not found'):  # no record yet; the API is there
            await read_view(client, GPU_HOURS, "team")
        await view.admin("POST", "/api/v1/namespaces/tessera-system/configmaps", data)
        await view.until(f"{API}/namespaces/team/gpuhours", b"of-other")  # an administrator reads all
        text = (await read_view(client, GPU_HOURS, "team")).record
        totals = totals_of_record(decode_record(text), 0.0, 2.0 * HOUR)
        assert {key.namespace: row.held for key, row in totals.rows.items()} == {"team": 3600.0}
        assert (totals.cards, totals.end, totals.notes) == (
            {},
            2.0 * HOUR,
            ("the record begins later than the window",),
        )
        assert not [name for name in ("other", OTHER, "machine-1", "9999") if name in text]


async def test_without_a_controller_the_queue_is_said_to_be_unknown() -> None:
    async with served() as view:
        await view.allow("ann", "team")
        client = in_process_client(view.cluster.server, SystemClock(), "ann", "system:authenticated")
        with pytest.raises(ServiceUnavailable, match="no controller runs in tessera-system"):
            await read_view(client, WAITING_PODS, "team")
        assert (await read(client, Wanted("team", "team"))).reading.told


async def test_rbac_decides_by_the_namespace_who_may_ask() -> None:
    async with served() as view:
        await view.allow("ann", "team")
        for name, namespace in (("ann", "other"), ("bob", "team"), ("ann", "")):
            path = f"{API}/namespaces/{namespace}/usages" if namespace else f"{API}/usages"
            answer = await view.user(name)("GET", path)
            assert (answer["code"], answer["reason"]) == (403, "Forbidden"), (name, namespace)


async def test_where_the_api_is_not_installed_no_role_of_it_is_advised() -> None:
    """RBAC refused the kind that does not exist, and ``tessera map`` advised to bind a role that does not either."""
    cluster = AgentCluster()
    await cluster.begin()
    client = in_process_client(cluster.server, SystemClock(), "ann", "system:authenticated")
    with pytest.raises(CommandError) as refused:
        await read_as_tenant(client, MAPS, "team")
    assert "tessera install --reuse --dashboard" in refused.value.message
    assert "rolebinding" not in refused.value.message
    async with served() as view:
        client = in_process_client(view.cluster.server, SystemClock(), "ann", "system:authenticated")
        with pytest.raises(CommandError, match="rolebinding"):
            await read_as_tenant(client, MAPS, "team")


async def test_an_administrator_sees_every_name() -> None:
    async with served() as view:
        text = await view.until(f"{API}/namespaces/team/usages", b"beta")
        assert b"machine-1" in text


async def test_the_role_alone_names_the_pods_of_its_namespace() -> None:
    rules = shipped("ClusterRole", "tessera-view")["rules"]
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]} in rules


async def test_discovery_lists_the_group_beside_those_of_the_server() -> None:
    async with served() as view:
        groups = (await view.admin("GET", "/apis"))["groups"]
        assert {"apps", "view.tessera.dev"} <= {each["name"] for each in groups}
        group = await view.admin("GET", "/apis/view.tessera.dev")
        assert group["preferredVersion"]["groupVersion"] == "view.tessera.dev/v1alpha1"
        listed = await view.admin("GET", API)
        assert {each["name"] for each in listed["resources"]} == {each.plural for each in RESOURCES}


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/namespaces/team/usages/other", 404),
        ("GET", "/namespaces/team/cards", 404),
        ("GET", "/namespaces/team/explanations", 404),
        ("GET", "/namespaces/team/usages/cluster/status", 404),
        ("POST", "/namespaces/team/usages", 405),
        ("DELETE", "/namespaces/team/maps/cluster", 405),
    ],
)
async def test_everything_else_is_a_status(method: str, path: str, code: int) -> None:
    async with served() as view:
        answer = await view.admin(method, f"{API}{path}")
        assert (answer["kind"], answer["code"]) == ("Status", code)


async def test_a_pod_is_explained_to_its_tenant_only() -> None:
    async with served() as view:
        await view.allow("ann", "team")
        waiting = pod("waits")
        waiting["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        await view.admin("POST", "/api/v1/namespaces/team/pods", waiting)
        await view.until(f"{API}/namespaces/team/explanations/waits", b"not-offered")
        answer = await view.user("ann")("GET", f"{API}/namespaces/team/explanations/waits")
        assert answer["report"]["answers"][0]["case"] == "not-offered"
        assert (await view.user("bob")("GET", f"{API}/namespaces/team/explanations/waits"))["code"] == 403


async def test_a_node_is_explained_to_nobody_who_may_not_list_nodes() -> None:
    async with served() as view:
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "every-pod"}
        rules = [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
            {"apiGroups": ["view.tessera.dev"], "resources": ["*"], "verbs": ["get"]},
        ]
        await view.admin("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "every-pod"}, "rules": rules})
        subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}
        bound = {"metadata": {"name": "ann"}, "roleRef": role, "subjects": [subject]}
        await view.admin("POST", f"{RBAC}/clusterrolebindings", bound)
        await view.admin("POST", "/api/v1/nodes", {"metadata": {"name": "machine-1"}})
        await view.until(f"{API}/namespaces/-/explanations/machine-1", b"report")
        answer = await view.user("ann")("GET", f"{API}/namespaces/-/explanations/machine-1")
        assert answer["code"] == 404


async def test_an_answer_is_complete_if_its_reader_may_list_what_it_rests_on() -> None:
    """``tessera why`` then asks nothing more; a reader who may not list events is told none."""
    async with served() as view:
        await view.allow("ann", "team")
        await view.admin("POST", "/api/v1/namespaces/team/pods", {**pod("runs"), "status": {"phase": "Running"}})
        runs = f"{API}/namespaces/team/explanations/runs"
        await view.until(runs, b"report")
        assert not (await view.admin("GET", runs))["complete"], "it has no node, and no controller answers"
        binding = {"target": {"kind": "Node", "name": "machine-1"}}
        await view.admin("POST", "/api/v1/namespaces/team/pods/runs/binding", binding)
        await view.until(runs, b'"complete":true')
        assert not (await view.user("ann")("GET", runs))["complete"]
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "facts"}
        rules = [{"apiGroups": [""], "resources": ["events", "resourcequotas"], "verbs": ["list"]}]
        await view.admin("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "facts"}, "rules": rules})
        for name in ("bob", "cy"):
            await view.allow(name, "team")
        subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "bob"}
        bound = {"metadata": {"name": "facts"}, "roleRef": role, "subjects": [subject]}
        await view.admin("POST", f"{RBAC}/namespaces/team/rolebindings", bound)
        assert (await view.user("bob")("GET", runs))["complete"]
        assert not (await view.user("cy")("GET", runs))["complete"]
        await view.admin("POST", "/api/v1/namespaces/team/pods", pod("waits"))
        await view.cluster.add_controller(QueuePage(leads=True, taken=SystemClock().now()))
        # The controller has not listed it in a round yet, so nobody could tell more.
        await view.until(f"{API}/namespaces/team/explanations/waits", b'"complete":true')


async def test_the_pages_prometheus_is_told_to_the_doctor() -> None:
    async with StandIn().serve() as stand_in:
        stand_in.answer = lambda form: web.Response(
            body=matrix() if "busy" in form["query"] else matrix([(int(form["start"]), "1")])
        )
        async with served(Prometheus(stand_in.url)) as view:
            client = in_process_client(view.cluster.server, SystemClock(), "doctor", "system:masters")
            assert (await read_facts(client, SystemClock(), "team")).past is None, "the page's pod names none"
            page = pod("tessera-dashboard-1")
            page["spec"]["containers"][0]["args"] = [f"--prometheus={stand_in.url}"]
            await view.admin("POST", "/api/v1/namespaces/tessera-system/pods", page)
            found = (await read_facts(client, SystemClock(), "team")).past
            assert isinstance(found, dict)
            assert found["empty"] == ["avg(tessera:gpu_busy:ratio{})"]
    async with served(Prometheus("http://127.0.0.1:1/prom")) as view:
        found = await view.admin("GET", f"{API}/namespaces/team/pasts/cluster")
        assert found["problem"].startswith("Prometheus does not answer: ClientConnectorError")
        await view.allow("ann", "team")
        assert (await view.user("ann")("GET", f"{API}/namespaces/team/pasts/cluster"))["problem"] == (
            "Prometheus does not answer"
        )


async def test_one_who_asks_without_end_takes_no_answer_from_another() -> None:
    async with served() as view:
        for name in ("ann", "bob"):
            await view.allow(name, f"of-{name}")
            await view.admin("POST", f"/api/v1/namespaces/of-{name}/pods", pod("waits"))
            await view.until(f"{API}/namespaces/of-{name}/explanations/waits", b"report")

        async def ask(name: str) -> list[int]:
            paths = [f"{API}/namespaces/of-{name}/{each}" for each in ("explanations/waits", "usages", "maps")]
            return [(await view.user(name).raw("GET", path)).status for path in paths]

        async def ask_again_and_again() -> None:
            while True:
                await ask("bob")

        crowd = [asyncio.create_task(ask_again_and_again()) for _ in range(2 * PAGE_EXPLANATIONS)]
        await ask("bob")
        assert [await ask("ann") for _ in range(10)] == [[200] * 3] * 10
        for each in crowd:
            each.cancel()
        await asyncio.wait(crowd)


async def test_a_forged_user_is_not_believed_past_the_api_server(tmp_path: Path) -> None:
    async with served() as view:
        forged = {"X_Remote_User": "kubernetes-admin", "X_Remote_Group": "system:masters"}
        assert await view.ask_directly(None, tmp_path, **forged) == 0
        other = CertificateAuthority(SystemClock().now(), "front-proxy-ca").issue_client_certificate(
            "front-proxy-client"
        )
        assert await view.ask_directly(other, tmp_path, **forged) == 0
        proxy = view.cluster.server.aggregator.call
        assert isinstance(proxy, FrontProxy)
        tenant = proxy.issue("somebody")
        assert await view.ask_directly(tenant, tmp_path, **forged) == 401
        own = proxy.issue("front-proxy-client")
        assert await view.ask_directly(own, tmp_path, **forged) == 200
        assert await view.ask_directly(own, tmp_path) == 401


async def test_a_forged_user_is_not_believed_through_the_api_server() -> None:
    async with served() as view:
        await view.allow("ann", "team")
        forged = {"x_remote_user": "kubernetes-admin", "x_remote_group": "system:masters"}
        answer = await view.user("ann").raw("GET", f"{API}/namespaces/team/usages", **forged)
        assert b"alpha" in answer.body
        assert b"beta" not in answer.body


async def test_the_authority_is_written_again_if_somebody_removes_it() -> None:
    async with served() as view:
        await view.admin.merge(f"{SERVICES}/{API_SERVICE}", {"spec": {"caBundle": None}})
        await view.until(f"{SERVICES}/{API_SERVICE}", b"caBundle")
        await view.until(f"{API}/namespaces/team/usages", b"alpha")


async def test_a_user_who_may_not_ask_is_refused_in_the_words_of_the_api_server() -> None:
    async with served() as view:
        client = in_process_client(view.cluster.server, SystemClock(), "bob", "system:authenticated")
        with pytest.raises(Forbidden, match=r'cannot get resource "usages" in API group "view\.tessera\.dev"'):
            await read_view(client, USAGES, "team")
        await view.admin("DELETE", f"{SERVICES}/{API_SERVICE}")
        admin = in_process_client(view.cluster.server, SystemClock(), "boss", "system:masters")
        with pytest.raises(NotFound):
            await read_view(admin, USAGES, "team")
