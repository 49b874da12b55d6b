"""Flow schemas as the lab's server keeps them: what it takes orders its requests, and it takes nothing else."""

from typing import Any

import pytest
from tests.support.api_user import ApiUser

from tessera.clock import SystemClock
from tessera_lab.apiserver.authz.identity import service_account_user
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.apiserver.request.flow_schemas import StoredSchemas
from tessera_lab.apiserver.request.routing import Route

PATH = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
USER = service_account_user("team", "worker")
LIST = Route(verb="list", group="", version="v1", resource="pods", namespace="team")
SUBJECT = {"kind": "ServiceAccount", "serviceAccount": {"name": "worker", "namespace": "team"}}
RULE = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"], "namespaces": ["team"]}


def schema(level: str = "system", name: str = "s", *, subject: Any = SUBJECT, rule: Any = RULE, **spec: Any) -> Any:
    rules = [{"subjects": [subject], "resourceRules": [rule]}]
    return {"metadata": {"name": name}, "spec": {"priorityLevelConfiguration": {"name": level}, "rules": rules, **spec}}


@pytest.fixture
def server() -> ApiServer:
    return ApiServer(SystemClock())


async def test_a_stored_schema_orders_requests_until_it_is_deleted(server: ApiServer) -> None:
    admin, schemas = ApiUser(server), StoredSchemas(server.core.store)
    made = await admin("POST", PATH, schema())
    assert made["spec"]["matchingPrecedence"] == 1000
    assert schemas.level_of(USER, LIST) == "system"
    await admin("POST", PATH, schema("node-high", "first", matchingPrecedence=999))
    assert schemas.level_of(USER, LIST) == "node-high"
    await admin.merge(f"{PATH}/first", {"spec": {"matchingPrecedence": 9500}})
    assert schemas.level_of(USER, LIST) == "system"
    await admin("DELETE", f"{PATH}/s")
    assert schemas.level_of(USER, LIST) == "workload-low", "the server's own schema for accounts has precedence 9000"
    await admin("POST", PATH, schema("no-such-level", matchingPrecedence=1))
    assert schemas.level_of(USER, LIST) == "workload-low"


@pytest.mark.parametrize(
    ("change", "matches"),
    [
        ({}, True),
        ({"subject": {"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "team"}}}, True),
        ({"subject": {"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "te"}}}, False),
        ({"subject": {"kind": "Group", "group": {"name": "system:serviceaccounts:team"}}}, True),
        ({"subject": {"kind": "User", "user": {"name": "jane"}}}, False),
        ({"subject": {"kind": "User", "user": {"name": "*"}}}, True),
        ({"rule": {**RULE, "verbs": ["*"], "resources": ["*"], "apiGroups": ["*"], "namespaces": ["*"]}}, True),
        ({"rule": {**RULE, "resources": ["pods/status"]}}, False),
        ({"rule": {**RULE, "namespaces": ["other"]}}, False),
        ({"rule": {**RULE, "namespaces": [], "clusterScope": True}}, False),
        ({"rule": {**RULE, "verbs": ["watch"]}}, False),
    ],
    ids=str,
)
async def test_a_rule_matches_by_subject_and_request(server: ApiServer, change: Any, matches: bool) -> None:
    schemas = StoredSchemas(server.core.store)
    assert "code" not in await ApiUser(server)("POST", PATH, schema(**change))
    assert (schemas.level_of(USER, LIST) == "system") is matches


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (schema(matchingPrecedence=0), "spec.matchingPrecedence"),
        (schema(matchingPrecedence=10_001), "spec.matchingPrecedence"),
        (schema(""), "spec.priorityLevelConfiguration.name"),
        (schema(subject={"kind": "Team"}), "spec.rules[0].subjects[0].kind"),
        (schema(rule={**RULE, "namespaces": []}), "spec.rules[0].resourceRules[0].namespaces"),
        (schema(rules=[{"subjects": [SUBJECT]}]), "spec.rules[0]"),
        (schema(rules=[{"resourceRules": [RULE]}]), "spec.rules[0].subjects"),
        (
            schema(rules=[{"subjects": [SUBJECT], "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]),
            "spec.rules[0].nonResourceRules",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_it_does_not_order_by_is_refused(server: ApiServer, sent: Any, field: str) -> None:
    answer = await ApiUser(server)("POST", PATH, sent)
    assert (answer["code"], field in answer["message"]) == (422, True), answer
