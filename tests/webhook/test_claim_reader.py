"""Whose devices the claims of a new pod ask for, read within bounds; what cannot be read gates no pod."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.support.device_claims import claim, claim_template, device_class, exactly
from tests.webhook.conftest import ADMIN, Lab

from tessera.claims.admission import ClaimReader
from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera.kube.client import Client
from tessera.kube.requests import Request, Response, Transport
from tessera.webhook.base import WebhookMetrics
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport

OURS = "gpu.tessera.dev"


class Way(InProcessTransport):
    """Counts reads of templates and claims, and may hold them for ever."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab.server, ADMIN)
        self.reads = 0
        self.silent = False

    async def request(self, request: Request) -> Response:
        if "/namespaces/" in request.path:
            self.reads += 1
            if self.silent:
                await asyncio.Event().wait()
        return await super().request(request)


class Story:
    """A reader, and what it says about pods with these claims."""

    def __init__(self, reader: ClaimReader, metrics: WebhookMetrics, way: Way, lab: Lab) -> None:
        self.reader = reader
        self._metrics = metrics
        self.way = way
        self.lab = lab

    async def gates(self, *claims: dict[str, Any]) -> bool:
        pod = {"spec": {"resourceClaims": [{"name": "c", **each} for each in claims]}}
        body = msgspec.json.encode({"request": {"namespace": "default", "object": pod}})
        return (await self.reader.read_claims(body)).ours

    @property
    def unread(self) -> float | None:
        return self._metrics.registry.get_sample_value("tessera_unread_claims_total")


def by_template(name: str) -> dict[str, Any]:
    return {"resourceClaimTemplateName": name}


def named(name: str) -> dict[str, Any]:
    return {"resourceClaimName": name}


@pytest.fixture
async def story(lab: Lab) -> AsyncIterator[Story]:
    """A server that has a class of ours and one of others, each with a claim and a template."""
    for name, driver in (("ours", OURS), ("others", "nic.example.com")):
        await lab.client.create(DEVICE_CLASSES.as_dicts(), device_class(name, f"device.driver == '{driver}'"))
        await lab.client.create(
            RESOURCE_CLAIM_TEMPLATES.as_dicts(), claim_template(name, exactly("r", name)), "default"
        )
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim(name, exactly("r", name)), "default")
    way, metrics = Way(lab), WebhookMetrics()
    transport: Transport = way
    client = Client(transport, field_manager="tessera-webhook", clock=lab.clock)
    reader = ClaimReader(OURS, client, lab.clock, random.Random(0), metrics)
    task = asyncio.create_task(reader.run())
    await lab.clock.sleep(5)
    yield Story(reader, metrics, way, lab)
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.parametrize(
    ("claims", "gated"),
    [
        ([], False),
        ([by_template("ours")], True),
        ([named("ours")], True),
        ([by_template("others")], False),
        ([named("others")], False),
        ([named("others"), by_template("ours")], True),
        ([by_template("absent"), named("absent")], False),
        ([named("absent"), named("ours")], True),
        ([{}], False),
        ([{"podGroupResourceClaim": "g"}, by_template("ours")], True),
        ([named("../../secrets")], False),
        ([named("others")] * 8 + [named("ours")], False),  # a ninth is not read
    ],
)
async def test_a_pod_is_gated_for_a_claim_of_ours(story: Story, claims: list[dict[str, Any]], *, gated: bool) -> None:
    assert await story.gates(*claims) == gated
    assert story.way.reads <= 8


async def test_a_template_is_read_once_for_the_pods_of_a_burst(story: Story) -> None:
    for _ in range(5):
        assert await story.gates(by_template("ours"))
    assert story.way.reads == 1
    await story.lab.clock.sleep(10)
    assert await story.gates(by_template("ours"))
    assert story.way.reads == 2


async def test_a_class_that_changes_counts_for_the_next_pod(story: Story) -> None:
    assert not await story.gates(by_template("others"))
    selectors = [{"cel": {"expression": f'device.driver == "{OURS}"'}}]
    await story.lab.client.merge_patch(DEVICE_CLASSES, "others", {"spec": {"selectors": selectors}})
    await story.lab.client.delete(DEVICE_CLASSES, "ours")
    await story.lab.clock.sleep(1)
    assert await story.gates(by_template("others"))
    assert not await story.gates(by_template("ours"))


async def test_a_server_that_does_not_answer_delays_a_pod_by_two_seconds(story: Story) -> None:
    story.way.silent = True
    began = story.lab.clock.monotonic()
    assert not await story.gates(*[named("ours")] * 8)
    assert story.lab.clock.monotonic() - began == pytest.approx(2.0)
    assert story.unread == 1.0


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 5000, b'{"request": {"object": {"spec": {"resourceClaims": [7]}}}}', b"\xff"]
)
async def test_a_body_that_is_no_review_has_no_claims(story: Story, body: bytes) -> None:
    assert not (await story.reader.read_claims(body)).ours
    assert (await story.reader.make_templates(body)).problem == ""
    assert story.way.reads == 0
