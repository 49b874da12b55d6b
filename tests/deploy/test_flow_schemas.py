"""``deploy/flow.yaml``: a busy API server answers Tessera's leases and promises before its lists and events.

The rules name requests that the accounts have a right to; ``tests/cluster/test_rbac.py`` shows that each right is used,
by the requests that the processes send in a lab. So no rule is for a request that nobody sends.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.deploy.conftest import rendered

from tessera_lab.apiserver.authz.identity import service_account_user
from tessera_lab.apiserver.request.fair_queuing import RELEASED_AT_ONCE, FairQueues
from tessera_lab.apiserver.request.flow_schemas import SHARES, FlowSchema, level_of, read_schema
from tessera_lab.apiserver.request.routing import Route

ACCOUNTS = {each: service_account_user("tessera-system", each) for each in ("tessera-controller", "tessera-agent")}
CONTROLLER, AGENT = ACCOUNTS.values()
LEASES = "coordination.k8s.io"


def shipped() -> list[FlowSchema]:
    found = [read_schema(each) for each in rendered("deploy").of_kind("FlowSchema")]
    return sorted(found, key=lambda each: each.precedence)


def request(verb: str, group: str, resource: str, namespace: str = "", subresource: str = "") -> Route:
    return Route(verb=verb, group=group, version="v1", resource=resource, namespace=namespace, subresource=subresource)


LEASE = request("patch", LEASES, "leases", "tessera-system")
LIST = request("list", "", "pods")
LEVELS: list[tuple[Any, Route, str]] = [
    (CONTROLLER, LEASE, "leader-election"),
    (CONTROLLER, request("get", LEASES, "leases", "tessera-system"), "leader-election"),
    (CONTROLLER, request("create", LEASES, "leases", "tessera-system"), "leader-election"),
    (CONTROLLER, request("get", LEASES, "leases", "kube-node-lease"), "workload-low"),
    (CONTROLLER, request("patch", "", "pods", "team"), "workload-high"),
    (CONTROLLER, request("patch", "", "pods", "team", "status"), "workload-high"),
    (CONTROLLER, request("patch", "inference.redhat.com", "instaslices", "instaslice-system"), "workload-high"),
    (CONTROLLER, request("patch", "", "nodes"), "workload-high"),
    (CONTROLLER, request("patch", "", "nodes", "", "status"), "workload-high"),
    (CONTROLLER, LIST, "workload-low"),
    (CONTROLLER, request("watch", "", "pods"), "workload-low"),
    (CONTROLLER, request("create", "", "events", "team"), "workload-low"),
    (CONTROLLER, request("patch", "", "configmaps", "tessera-system"), "workload-low"),
    (AGENT, request("patch", "inference.redhat.com", "instaslices", "instaslice-system", "status"), "workload-high"),
    (AGENT, request("patch", "", "nodes", "", "status"), "workload-high"),
    (AGENT, request("list", "inference.redhat.com", "instaslices", "instaslice-system"), "workload-low"),
    (AGENT, LEASE, "workload-low"),
    (service_account_user("team", "tessera-controller"), LEASE, "workload-low"),
    (service_account_user("tessera-system", "tessera-driver"), request("patch", "", "nodes"), "workload-low"),
]


@pytest.mark.parametrize(("user", "route", "level"), LEVELS, ids=str)
def test_each_request_has_its_level(user: Any, route: Route, level: str) -> None:
    assert level_of(user, route, shipped()) == level


def test_the_levels_are_those_that_every_api_server_has() -> None:
    assert {each.level for each in shipped()} <= set(SHARES)


def _named(rule: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            yield from ((group, resource, verb) for verb in rule["verbs"])


def _granted(account: str) -> set[tuple[str, str, str]]:
    roles = {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each["rules"]
        for each in rendered("deploy").of_kind("Role", "ClusterRole")
    }
    found: set[tuple[str, str, str]] = set()
    for each in rendered("deploy").of_kind("RoleBinding", "ClusterRoleBinding"):
        if any(subject["name"] == account for subject in each["subjects"]):
            reference = each["roleRef"]
            place = each["metadata"].get("namespace", "") if reference["kind"] == "Role" else ""
            found |= {
                right
                for rule in roles[reference["kind"], place, reference["name"]]
                if "resources" in rule
                for right in _named(rule)
            }
    return found


def test_the_rules_name_requests_that_the_accounts_may_send_and_all_of_leases() -> None:
    named: dict[str, set[tuple[str, str, str]]] = {}
    for schema in shipped():
        for rule in schema.rules:
            (subject,) = rule["subjects"]
            account = subject["serviceAccount"]
            assert account["namespace"] == "tessera-system"
            named.setdefault(account["name"], set()).update(
                right for each in rule["resourceRules"] for right in _named(each)
            )
    for account, rights in named.items():
        assert rights <= _granted(account), account
    leases = {each for each in _granted("tessera-controller") if each[0] == LEASES}
    assert leases == {each for each in named["tessera-controller"] if each[0] == LEASES}


@pytest.mark.parametrize(("schemas", "before"), [(True, 0), (False, 900)])
def test_a_lease_waits_for_no_flood_of_lists_of_the_same_account(schemas: bool, before: int) -> None:
    """900 lists of the controller's account wait, each as wide as a large list, when the renewal comes."""
    stored = shipped() if schemas else []

    async def flood() -> int:
        queues = FairQueues(lambda user, route: level_of(user, route, stored))
        served: Counter[str] = Counter()
        ahead: list[int] = []

        async def ask(route: Route, width: int) -> None:
            await queues.wait_turn(CONTROLLER, route, width=width)
            if route is LEASE:
                ahead.append(served["list"])
            served[route.verb] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(900):
                group.create_task(ask(LIST, 10))
            await asyncio.sleep(0)
            group.create_task(ask(LEASE, 1))
        return ahead[0]

    found = asyncio.run(flood())
    assert before <= found <= before + RELEASED_AT_ONCE
