"""The client's requests over real HTTP, verb by verb, and its reading of the answers."""

import pytest
from tests.kube.conftest import ImpatientClock, ScriptedServer, names, pod

from tessera.cli.base.connection import describe_error
from tessera.kube.client import Client
from tessera.kube.errors import (
    AlreadyExists,
    ApiError,
    BrokenAnswer,
    Conflict,
    Expired,
    Forbidden,
    InternalError,
    Invalid,
    NotFound,
    Status,
    TooManyRequests,
    error_from_response,
    error_from_status,
    is_unanswered,
)
from tessera.kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    LEASES,
    NODES,
    PODS,
    SECRETS,
    ConfigMap,
    ObjectMeta,
    manifest,
)

DONE = {"metadata": {"name": "x"}}


async def test_get_decodes_to_the_type_and_says_who_asks(server: ScriptedServer, client: Client) -> None:
    server.answers(pod("a", 5, node="n1"))
    got = await client.get(PODS, "a", "default")
    assert (got.metadata.name, got.spec.node_name) == ("a", "n1")
    (call,) = server.calls
    assert (call.method, call.path) == ("GET", "/api/v1/namespaces/default/pods/a")
    assert call.headers["user-agent"] == "tessera/0.2.0 (tessera-test)"


async def test_get_of_an_untyped_resource_gives_every_field(server: ScriptedServer, client: Client) -> None:
    server.answers({**DONE, "anything": {"deep": [1]}})
    assert (await client.get(NODES.as_dicts(), "x"))["anything"] == {"deep": [1]}


async def test_get_of_metadata_only(server: ScriptedServer, client: Client) -> None:
    server.answers({**DONE, "spec": 5})
    assert (await client.get(NODES.metadata_only(), "x")).metadata.name == "x"


async def test_a_list_is_read_in_pages(server: ScriptedServer, client: Client) -> None:
    server.lists(pod("a", 1), token="more").lists(pod("b", 2), version=101)
    listing = await client.list(PODS, label_selector="a in (b)", limit=1)
    assert names(listing.items) == ["a", "b"]
    assert listing.resource_version == "101"
    assert [call.query.get("continue") for call in server.calls] == [None, "more"]
    assert server.calls[1].query["labelSelector"] == "a in (b)"


async def test_create_adds_version_and_kind(server: ScriptedServer, client: Client) -> None:
    server.answers(DONE, 201)
    await client.create(CONFIGMAPS, ConfigMap(metadata=ObjectMeta(name="x"), data={"k": "v"}), "ns")
    (call,) = server.calls
    assert (call.method, call.path) == ("POST", "/api/v1/namespaces/ns/configmaps")
    assert call.json == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"k": "v"}}
    assert call.query["fieldManager"] == "tessera-test"


async def test_apply_is_server_side_under_the_fixed_field_manager(server: ScriptedServer, client: Client) -> None:
    server.answers(DONE)
    await client.apply(LEASES, "x", {"spec": {"holderIdentity": "me"}}, "ns")
    (call,) = server.calls
    assert (call.method, call.path) == ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/x")
    assert call.headers["content-type"] == "application/apply-patch+yaml"
    assert call.query == {"fieldManager": "tessera-test", "force": "true"}
    assert call.json == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "x", "namespace": "ns"},
        "spec": {"holderIdentity": "me"},
    }


async def test_merge_patch_carries_what_must_not_have_changed(server: ScriptedServer, client: Client) -> None:
    server.answers(DONE).answers(DONE)
    patch = {"metadata": {"labels": {"a": None}}, "spec": {"unschedulable": True}}
    await client.merge_patch(NODES, "x", patch, subresource="status", resource_version="7", uid="u")
    await client.merge_patch(NODES, "x", patch)
    guarded, plain = server.calls
    assert guarded.path == "/api/v1/nodes/x/status"
    assert guarded.headers["content-type"] == "application/merge-patch+json"
    assert guarded.json["metadata"] == {"labels": {"a": None}, "resourceVersion": "7", "uid": "u"}
    assert plain.json == patch


async def test_a_patch_of_another_life_of_the_object_is_a_conflict(server: ScriptedServer, client: Client) -> None:
    immutable = {"causes": [{"field": "metadata.uid", "message": "field is immutable"}]}
    other = {"causes": [{"field": "spec.a", "message": "required"}]}
    for details in (immutable, other):
        server.answers({"code": 422, "reason": "Invalid", "message": "no", "details": details}, 422)
    with pytest.raises(Conflict):
        await client.merge_patch(PODS, "a", {}, "ns", uid="u")
    with pytest.raises(Invalid):
        await client.merge_patch(PODS, "a", {}, "ns", uid="u")


async def test_delete_with_preconditions_grace_and_propagation(server: ScriptedServer, client: Client) -> None:
    server.answers({}).answers({})
    await client.delete(PODS, "a", "ns", uid="u", resource_version="5", grace_seconds=0, propagation="Background")
    await client.delete(PODS, "a", "ns")
    assert server.calls[0].json == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u", "resourceVersion": "5"},
        "propagationPolicy": "Background",
    }
    assert "gracePeriodSeconds" not in server.calls[1].json


async def test_binding_eviction_and_scale_have_their_own_forms(server: ScriptedServer, client: Client) -> None:
    server.answers({}, 201).answers({}, 201).answers({**DONE, "spec": {"replicas": 3}, "status": {"replicas": 1}})
    await client.bind("a", "ns", "n1", uid="u")
    await client.evict("a", "ns", grace_seconds=5)
    scale = await client.scale(DEPLOYMENTS, "d", "ns", 3)
    binding, eviction, scaling = server.calls
    assert binding.path == "/api/v1/namespaces/ns/pods/a/binding"
    assert binding.json["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    assert eviction.path == "/api/v1/namespaces/ns/pods/a/eviction"
    assert eviction.json["deleteOptions"]["gracePeriodSeconds"] == 5
    assert (scaling.path, scaling.json) == (
        "/apis/apps/v1/namespaces/ns/deployments/d/scale",
        {"spec": {"replicas": 3}},
    )
    assert (scale.spec.replicas, scale.status.replicas) == (3, 1)


async def test_anything_else_goes_through_request(server: ScriptedServer, client: Client) -> None:
    server.answers({"status": {"allowed": True}}, 201)
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {}}
    await client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
    assert server.calls[0].json == body


async def test_names_are_escaped_in_paths(server: ScriptedServer, client: Client) -> None:
    server.answers(DONE)
    await client.get(NODES, "a/b?c")
    assert server.calls[0].path == "/api/v1/nodes/a%2Fb%3Fc"


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Expired),
        (410, "Gone", Expired),
        (403, "Forbidden", Forbidden),
        (422, "Invalid", Invalid),
        (500, "", InternalError),
        (418, "", ApiError),
    ],
)
async def test_refusals_are_typed_and_read_like_kubectl(
    server: ScriptedServer, client: Client, code: int, reason: str, kind: type[ApiError]
) -> None:
    server.refuses(code, reason, 'pods "x" it is so')
    with pytest.raises(kind) as caught:
        await client.get(PODS, "x", "ns")
    assert type(caught.value) is kind
    assert str(caught.value) == f'Error from server{f" ({reason})" if reason else ""}: pods "x" it is so'
    assert caught.value.code == code


def test_an_answer_that_is_no_status_is_quoted() -> None:
    error = error_from_response(502, {}, b"<html>Bad Gateway</html>")
    assert str(error) == "Error from server: HTTP status 502: <html>Bad Gateway</html>"


def test_a_403_that_is_no_status_is_not_a_missing_right() -> None:
    error = error_from_response(403, {}, b"resolve_deny")
    assert not isinstance(error, Forbidden)
    assert is_unanswered(error)
    assert str(error) == "Error from server: HTTP status 403: resolve_deny"
    told = describe_error(error) or ""
    assert "no answer of Kubernetes" in told
    assert "proxy-url" in told
    assert "right" not in told


@pytest.mark.parametrize(
    ("message", "is_by_right"),
    [
        ('pods is forbidden: User "a" cannot list resource "pods" in API group "" in the namespace "b"', True),
        ('User "a" cannot get path "/metrics"', True),
        ('admission webhook "w.example" denied the request: no', False),
        ('pods "a" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2', False),
    ],
)
def test_only_an_authorizer_says_that_a_right_is_missing(message: str, *, is_by_right: bool) -> None:
    error = error_from_status(Status(code=403, reason="Forbidden", message=message))
    assert isinstance(error, Forbidden)
    assert error.lacks_right is is_by_right
    assert ("ask an administrator for this right" in (describe_error(error) or "")) is is_by_right


def test_the_faults_of_an_invalid_object_are_listed() -> None:
    body = (
        b'{"code":422,"reason":"Invalid","message":"m","details":{"causes":[{"field":"spec.a","message":"required"}]}}'
    )
    (cause,) = error_from_response(422, {}, body).causes
    assert (cause.field, cause.message) == ("spec.a", "required")


async def test_a_read_or_a_patch_answered_too_many_requests_waits_and_is_sent_again(
    server: ScriptedServer, client: Client, clock: ImpatientClock
) -> None:
    server.refuses(429, "TooManyRequests", retry_after="3").refuses(429, "TooManyRequests", retry_after="999").answers(
        DONE
    )
    await client.merge_patch(NODES, "x", {})
    assert clock.pauses == [3.0, 30.0]


async def test_too_many_requests_comes_out_after_five_tries(
    server: ScriptedServer, client: Client, clock: ImpatientClock
) -> None:
    for _ in range(5):
        server.refuses(429, "TooManyRequests", retry_after="1")
    with pytest.raises(TooManyRequests):
        await client.get(NODES, "x")
    assert len(server.calls) == 5


async def test_a_create_is_never_sent_twice(server: ScriptedServer, client: Client) -> None:
    server.refuses(429, "TooManyRequests", retry_after="1").breaks().refuses(429, "TooManyRequests", retry_after="1")
    with pytest.raises(TooManyRequests):
        await client.create(CONFIGMAPS, {}, "ns")
    with pytest.raises(ConnectionError):
        await client.create(CONFIGMAPS, {}, "ns")
    with pytest.raises(TooManyRequests):
        await client.evict("a", "ns")
    assert len(server.calls) == 3


async def test_an_answer_that_does_not_fit_the_type_says_that_the_server_did_act(
    server: ScriptedServer, client: Client
) -> None:
    server.answers({"spec": 5})
    with pytest.raises(BrokenAnswer, match=r"Pod: the server's answer does not fit Pod: .*\$\.spec"):
        await client.merge_patch(PODS, "a", {}, "ns")


async def test_an_answer_that_is_no_list_is_a_broken_answer(server: ScriptedServer, client: Client) -> None:
    server.answers(5)
    with pytest.raises(BrokenAnswer, match=r"Pod: the server's answer does not fit Pod: "):
        await client.list(PODS)


async def test_a_namespaced_object_needs_its_namespace(client: Client) -> None:
    with pytest.raises(ValueError, match="pods 'a': a namespace is needed"):
        await client.get(PODS, "a")
    with pytest.raises(ValueError, match="create configmaps: a namespace is needed"):
        await client.create(CONFIGMAPS, {})
    with pytest.raises(ValueError, match="name is empty"):
        await client.get(NODES, "")


def test_secrets_are_bytes_here_and_base64_on_the_wire() -> None:
    secret = SECRETS.type(data={"key": b"\x00\xff"})
    assert manifest(SECRETS, secret)["data"] == {"key": "AP8="}


@pytest.mark.parametrize(
    ("status", "reason", "found"), [(403, "Forbidden", None), (404, "NotFound", ()), (500, "InternalError", None)]
)
async def test_a_list_of_what_a_user_may_list(
    server: ScriptedServer, client: Client, status: int, reason: str, found: object
) -> None:
    failed: dict[str, str] = {}
    for _ in range(9):  # more than the client tries
        server.refuses(status, reason)
    assert await client.list_allowed(DEPLOYMENTS, failed=failed) == found
    assert ("deployments" in failed) == (status == 500)


async def test_of_a_server_that_knows_no_nodes_it_is_unknown_if_there_are_any(
    server: ScriptedServer, client: Client
) -> None:
    server.refuses(404, "NotFound")
    assert await client.list_allowed(NODES, failed={}) is None
