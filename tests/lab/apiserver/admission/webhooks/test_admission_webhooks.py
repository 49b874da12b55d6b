"""Admission webhooks: who is asked, what with, and what becomes of the answers; in one process and over TLS."""

import asyncio
import base64
import itertools
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tessera.clock import SystemClock
from tessera_lab.apiserver.admission.webhooks.admission_webhooks import MUTATING, VALIDATING, AdmissionWebhooks
from tessera_lab.apiserver.admission.webhooks.callers import HttpCaller, InProcessCaller, WebhookCaller
from tessera_lab.apiserver.authz.certificates import CertificateAuthority
from tessera_lab.apiserver.interfaces import AdmissionRequest, Attributes, GroupResource, Obj, UserInfo
from tessera_lab.apiserver.kinds.builtin_types import builtin_types
from tessera_lab.apiserver.main.wiring import CORE_EVENTS, to_core_event, to_new_event
from tessera_lab.apiserver.resource_types import ResourceRegistry
from tessera_lab.apiserver.status import StatusError
from tessera_lab.apiserver.storage.store import Store

#: TLS libraries compare with the real time.
NOW = SystemClock().now()
Answer = Callable[[Obj], Obj]


class Reviewer:
    """A webhook that notes what it is asked and answers by a function."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[Obj] = []

    def __call__(self, body: bytes) -> bytes:
        review = msgspec.json.decode(body)
        assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        self.asked.append(review["request"])
        response = {"uid": review["request"]["uid"], **self._answer(review["request"])}
        return msgspec.json.encode({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})


def allow(_request: Obj) -> Obj:
    return {"allowed": True}


def patch(*operations: Obj) -> Answer:
    encoded = base64.b64encode(msgspec.json.encode(list(operations))).decode()
    return lambda _: {"allowed": True, "patchType": "JSONPatch", "patch": encoded}


def label(name: str, value: str = "x") -> Answer:
    return patch({"op": "add", "path": f"/metadata/labels/{name}", "value": value})


def hook(service: str, **more: Any) -> Obj:
    return {
        "name": f"{service}.example.com",
        "clientConfig": {"service": {"namespace": "n", "name": service, "path": "/review"}},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **more,
    }


class WebhookSetup:
    """Configurations, namespaces and webhooks without sockets."""

    def __init__(self) -> None:
        self.store = Store()
        self.reviewers: dict[tuple[str, str], Callable[[bytes], Any]] = {}
        self.caller: WebhookCaller = InProcessCaller(self.reviewers)
        self.registry = ResourceRegistry(builtin_types())
        self._uids = map(str, itertools.count(1))
        namespace: Obj = {"metadata": {"name": "team", "labels": {"tier": "gold"}}}
        self.store.put(GroupResource("", "namespaces"), namespace, None)

    def add(self, service: str, answer: Answer = allow, *, validating: bool = False, **more: Any) -> Reviewer:
        """A configuration with one webhook, and the reviewer behind it."""
        obj: Obj = {"metadata": {"name": service}, "webhooks": [hook(service, **more)]}
        self.store.put(VALIDATING if validating else MUTATING, obj, None)
        found = self.reviewers[("n", service)] = Reviewer(answer)
        return found

    @property
    def webhooks(self) -> AdmissionWebhooks:
        return AdmissionWebhooks(self.store, self.registry, self.caller, lambda: next(self._uids))


@pytest.fixture
def setup() -> WebhookSetup:
    return WebhookSetup()


def pod(**labels: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels}, "spec": {"containers": []}}


def create(obj: Obj | None = None, *, dry_run: bool = False, **asked: str) -> AdmissionRequest:
    where = {"version": "v1", "resource": "pods", "namespace": "team", **asked}
    attributes = Attributes(user=UserInfo(name="ann", groups=("dev",)), verb="create", **where)
    options = {"fieldManager": "kubectl"}
    return AdmissionRequest(
        attributes=attributes,
        operation="CREATE",
        kind="Pod",
        obj=pod() if obj is None else obj,
        old=None,
        dry_run=dry_run,
        options=options,
    )


async def test_a_review_is_what_kube_apiserver_sends(setup: WebhookSetup) -> None:
    reviewer = setup.add("a")
    await setup.webhooks.mutate(create())
    (asked,) = reviewer.asked
    gvk, gvr = {"group": "", "version": "v1", "kind": "Pod"}, {"group": "", "version": "v1", "resource": "pods"}
    assert asked == {
        "uid": "1",
        "kind": gvk,
        "resource": gvr,
        "requestKind": gvk,
        "requestResource": gvr,
        "name": "p",
        "namespace": "team",
        "operation": "CREATE",
        "userInfo": {"username": "ann", "groups": ["dev"]},
        "object": pod(),
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "kubectl"},
    }


async def test_a_patch_changes_a_copy(setup: WebhookSetup) -> None:
    setup.add("a", label("new"))
    sent = pod()
    admitted = await setup.webhooks.mutate(create(sent))
    assert admitted.obj == pod(new="x")
    assert sent == pod()


async def test_each_webhook_sees_what_the_former_made(setup: WebhookSetup) -> None:
    setup.add("a", label("first"))
    second = setup.add("b", label("second"))
    admitted = await setup.webhooks.mutate(create())
    assert second.asked[0]["object"] == pod(first="x")
    assert admitted.obj == pod(first="x", second="x")


async def test_reinvocation_asks_those_before_a_change_once_more(setup: WebhookSetup) -> None:
    first = setup.add("a", reinvocationPolicy="IfNeeded")
    never = setup.add("b")
    setup.add("c", label("late"), reinvocationPolicy="IfNeeded")
    await setup.webhooks.mutate(create())
    assert [each["object"] for each in first.asked] == [pod(), pod(late="x")]
    assert len(never.asked) == 1


async def test_no_reinvocation_without_a_change(setup: WebhookSetup) -> None:
    first = setup.add("a", label("early"), reinvocationPolicy="IfNeeded")
    setup.add("b", label("early"))
    await setup.webhooks.mutate(create())
    assert len(first.asked) == 1


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ({}, True),
        ({"namespaceSelector": {"matchLabels": {"tier": "gold"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"tier": "base"}}}, False),
        ({"namespaceSelector": {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}}, False),
        ({"matchConditions": [{"name": "a", "expression": "object.metadata.labels.app == 'x'"}]}, True),
        ({"matchConditions": [{"name": "a", "expression": "request.userInfo.username == 'bob'"}]}, False),
        (
            {
                "matchConditions": [
                    {"name": "a", "expression": "object.metadata.missing == 'x'"},
                    {"name": "b", "expression": "false"},
                ]
            },
            False,
        ),
        (
            {
                "failurePolicy": "Ignore",
                "matchConditions": [{"name": "a", "expression": "object.metadata.missing == 'x'"}],
            },
            False,
        ),
    ],
)
async def test_selectors_and_conditions(setup: WebhookSetup, change: Any, asked: bool) -> None:
    reviewer = setup.add("a", **change)
    await setup.webhooks.mutate(create(pod(app="x")))
    assert bool(reviewer.asked) is asked


@pytest.mark.parametrize(
    ("rule", "request_", "asked"),
    [
        ({}, create(), True),
        ({"operations": ["DELETE"]}, create(), False),
        ({"operations": ["*"]}, create(), True),
        ({"resources": ["*"]}, create(), True),
        ({"resources": ["*"]}, create(subresource="status"), False),
        ({"resources": ["pods/status"]}, create(subresource="status"), True),
        ({"resources": ["pods/*"]}, create(), True),
        ({"resources": ["*/*"]}, create(subresource="status"), True),
        ({"apiGroups": ["apps"]}, create(), False),
        ({"apiGroups": ["*"], "apiVersions": ["*"]}, create(), True),
        ({"scope": "Cluster"}, create(), False),
        ({"scope": "Namespaced"}, create(), True),
    ],
)
async def test_rules(setup: WebhookSetup, rule: Any, request_: AdmissionRequest, asked: bool) -> None:
    rules = [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], **rule}]
    reviewer = setup.add("a", rules=rules)
    await setup.webhooks.mutate(request_)
    assert bool(reviewer.asked) is asked


async def test_a_condition_that_cannot_be_evaluated_refuses(setup: WebhookSetup) -> None:
    setup.add("a", matchConditions=[{"name": "a", "expression": "object.spec.missing == 'x'"}])
    with pytest.raises(StatusError, match=r"pods is forbidden: expression .* resulted in error: no such key: missing"):
        await setup.webhooks.mutate(create())


async def test_another_version_of_the_resource_is_equivalent(setup: WebhookSetup) -> None:
    for each in list(setup.registry):
        if each.storage == CORE_EVENTS and each.group:
            both = {"from_storage": to_new_event, "to_storage": to_core_event}
            setup.registry.add(msgspec.structs.replace(each, **both))
    rules = [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["events"]}]
    equivalent = setup.add("a", patch({"op": "replace", "path": "/message", "value": "new"}), rules=rules)
    exact = setup.add("b", rules=rules, matchPolicy="Exact")
    event: Obj = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "note": "old"}
    admitted = await setup.webhooks.mutate(create(event, group="events.k8s.io", resource="events"))
    (asked,) = equivalent.asked
    assert asked["resource"] == {"group": "", "version": "v1", "resource": "events"}
    assert asked["requestResource"]["group"] == "events.k8s.io"
    assert asked["object"]["message"] == "old"
    assert admitted.obj is not None
    assert (admitted.obj["apiVersion"], admitted.obj["note"]) == ("events.k8s.io/v1", "new")
    assert exact.asked == []


async def test_configurations_of_webhooks_are_never_intercepted(setup: WebhookSetup) -> None:
    rules = [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]
    reviewer = setup.add("a", rules=rules)
    kind = "mutatingwebhookconfigurations"
    await setup.webhooks.mutate(create({}, group="admissionregistration.k8s.io", resource=kind, namespace=""))
    assert reviewer.asked == []


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (
            {"message": "no slice of that name", "code": 422, "reason": "Invalid"},
            422,
            'admission webhook "a.example.com" denied the request: no slice of that name',
        ),
        ({"reason": "Forbidden"}, 400, 'admission webhook "a.example.com" denied the request: Forbidden'),
        ({}, 400, 'admission webhook "a.example.com" denied the request without explanation'),
    ],
)
@pytest.mark.parametrize("validating", [False, True])
async def test_a_refusal(setup: WebhookSetup, status: Obj, code: int, text: str, validating: bool) -> None:
    setup.add("a", lambda _: {"allowed": False, "status": status}, validating=validating)
    with pytest.raises(StatusError) as caught:
        await (setup.webhooks.validate(create()) if validating else setup.webhooks.mutate(create()))
    assert (caught.value.code, str(caught.value)) == (code, text)


async def test_warnings_are_handed_on(setup: WebhookSetup) -> None:
    setup.add("a", lambda _: {"allowed": True, "warnings": ["old field"]})
    setup.add("v", lambda _: {"allowed": True, "warnings": ["also this"]}, validating=True)
    assert (await setup.webhooks.mutate(create())).warnings == ("old field",)
    assert await setup.webhooks.validate(create()) == ["also this"]


async def test_all_validating_webhooks_are_asked_and_the_first_refusal_counts(setup: WebhookSetup) -> None:
    setup.add("a", lambda _: {"allowed": False, "status": {"message": "first"}}, validating=True)
    second = setup.add("b", lambda _: {"allowed": False, "status": {"message": "second"}}, validating=True)
    with pytest.raises(StatusError, match="first"):
        await setup.webhooks.validate(create())
    assert len(second.asked) == 1


BAD: list[tuple[Answer, str]] = [
    (lambda _: {"uid": "other", "allowed": True}, 'expected response.uid="1", got "other"'),
    (lambda _: {"allowed": True, "patch": "W10="}, "webhook returned response.patch but not response.patchType"),
    (lambda _: {"allowed": True, "patch": "W10=", "patchType": "Merge"}, 'unsupported patch type "Merge"'),
    (lambda _: {"allowed": True, "patch": "!", "patchType": "JSONPatch"}, "received undecodable patch"),
]


@pytest.mark.parametrize(("answer", "why"), BAD)
async def test_an_answer_that_is_not_valid_fails_by_the_policy(setup: WebhookSetup, answer: Answer, why: str) -> None:
    setup.add("a", answer, failurePolicy="Fail")
    with pytest.raises(StatusError) as caught:
        await setup.webhooks.mutate(create())
    assert caught.value.code == 500
    failed = 'Internal error occurred: failed calling webhook "a.example.com": received invalid webhook response: '
    assert str(caught.value).startswith(failed + why)
    other = WebhookSetup()
    other.add("a", answer, failurePolicy="Ignore")
    assert (await other.webhooks.mutate(create())).obj == pod()


async def test_a_webhook_that_takes_too_long(setup: WebhookSetup) -> None:
    setup.add("a", timeoutSeconds=0.01)

    async def silent(_body: bytes) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    setup.reviewers[("n", "a")] = silent
    wanted = r'Post "https://a.n.svc:443/review\?timeout=0.01s": context deadline exceeded'
    with pytest.raises(StatusError, match=wanted):
        await setup.webhooks.mutate(create())


async def test_dry_run_asks_only_webhooks_without_side_effects(setup: WebhookSetup) -> None:
    first = setup.add("a", sideEffects="NoneOnDryRun")
    await setup.webhooks.mutate(create(dry_run=True))
    assert first.asked[0]["dryRun"] is True
    setup.add("b", sideEffects="Some")
    with pytest.raises(StatusError, match=r'admission webhook "b.example.com" does not support dry run') as caught:
        await setup.webhooks.mutate(create(dry_run=True))
    assert caught.value.code == 400


async def test_a_deletion_cannot_be_patched(setup: WebhookSetup) -> None:
    setup.add(
        "a",
        label("x"),
        rules=[{"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
    )
    request = msgspec.structs.replace(create(), operation="DELETE", obj=None, old=pod())
    with pytest.raises(StatusError, match="attempted to modify the object, which is not supported for this operation"):
        await setup.webhooks.mutate(request)


async def test_a_patch_that_does_not_fit_is_an_internal_error(setup: WebhookSetup) -> None:
    setup.add("a", patch({"op": "remove", "path": "/spec/missing"}))
    with pytest.raises(StatusError, match=r"^Internal error occurred: ") as caught:
        await setup.webhooks.mutate(create())
    assert caught.value.code == 500


# -- over TLS -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def served(
    authority: CertificateAuthority, host: str, folder: Path, review: Callable[[bytes], bytes]
) -> AsyncIterator[int]:
    """A webhook server on the loopback address with a certificate for ``host``; yields its port."""
    pair = authority.issue_server_certificate([host])
    file = folder / "pair.pem"
    file.write_bytes(pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)

    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=review(await request.read()), content_type="application/json")

    app = web.Application()
    app.add_routes([web.post("/review", handle)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def over_tls(
    setup: WebhookSetup, trusted: CertificateAuthority, served_by: CertificateAuthority, host: str, folder: Path
) -> Obj | None:
    reviewer = Reviewer(label("tls"))
    bundle = base64.b64encode(trusted.certificate).decode()
    async with served(served_by, host, folder, reviewer) as port:
        caller = HttpCaller(lambda namespace, name, _: ("127.0.0.1", port) if (namespace, name) == ("n", "a") else None)
        setup.caller = caller
        config = {"service": {"namespace": "n", "name": "a", "path": "/review"}, "caBundle": bundle}
        setup.add("a", clientConfig=config)
        try:
            return (await setup.webhooks.mutate(create())).obj
        finally:
            await caller.close()


async def test_a_service_is_asked_over_tls(setup: WebhookSetup, tmp_path: Path) -> None:
    authority = CertificateAuthority(NOW)
    assert await over_tls(setup, authority, authority, "a.n.svc", tmp_path) == pod(tls="x")


async def test_an_unknown_authority_is_not_trusted(setup: WebhookSetup, tmp_path: Path) -> None:
    with pytest.raises(StatusError, match="x509: certificate signed by unknown authority"):
        await over_tls(setup, CertificateAuthority(NOW), CertificateAuthority(NOW), "a.n.svc", tmp_path)


async def test_a_certificate_for_another_name_is_not_trusted(setup: WebhookSetup, tmp_path: Path) -> None:
    authority = CertificateAuthority(NOW)
    with pytest.raises(StatusError, match=r"failed to verify certificate: x509: .*a.n.svc"):
        await over_tls(setup, authority, authority, "other.n.svc", tmp_path)


async def test_a_service_that_the_resolver_does_not_know(setup: WebhookSetup) -> None:
    setup.caller = HttpCaller(lambda *_: None)
    setup.add("a")
    with pytest.raises(StatusError, match='failed to call webhook: service "a" not found'):
        await setup.webhooks.mutate(create())


async def test_a_bundle_without_certificates(setup: WebhookSetup) -> None:
    caller = HttpCaller(lambda *_: ("127.0.0.1", 1))
    setup.caller = caller
    setup.add("a", clientConfig={"url": "https://localhost:1/review", "caBundle": "Cg=="})
    with pytest.raises(StatusError, match="failed to call webhook: unable to load root certificates: unable to parse"):
        await setup.webhooks.mutate(create())
    await caller.close()


async def test_a_closed_port(setup: WebhookSetup) -> None:
    caller = HttpCaller(lambda *_: ("127.0.0.1", 1))
    setup.caller = caller
    setup.add("a")
    with pytest.raises(StatusError, match=r'failed to call webhook: Post "https://a.n.svc:443/review\?timeout=10s": '):
        await setup.webhooks.mutate(create())
    await caller.close()
