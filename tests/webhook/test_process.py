"""The webhook process: its certificate reaches the API server's trust, and reviews come in over TLS."""

import asyncio
import base64
import ssl
from typing import Any

import aiohttp
import msgspec
import pytest
from prometheus_client import generate_latest
from tests.webhook.conftest import NAME, NAMESPACE, SECRET, Lab

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import INSTASLICE_NAMESPACE as OBJECTS
from tessera.clock import LoopClock, SystemClock
from tessera.kube.resources import MUTATING_WEBHOOKS, SECRETS
from tessera.serving.connection import server_context
from tessera.webhook.base import WebhookOptions
from tessera.webhook.certificates import authority_fingerprints, issue, load_certificate, read_secret
from tessera.webhook.main import serve_reviews
from tessera.webhook.review import ReviewError

HOUR = 3600.0
POD = {
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/mig-3g.20gb": "1"}}}]},
}


def review(pod: dict[str, Any]) -> bytes:
    request = {"uid": "u", "operation": "CREATE", "kind": {"kind": "Pod"}, "object": pod}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


async def test_the_certificate_is_made_once_and_trusted_in_every_webhook(lab: Lab) -> None:
    async with lab.replica(1) as one, lab.replica(2) as two:
        await lab.clock.sleep(5)
        assert "no certificate" in one.unready_reason()
        await lab.configure()
        await lab.clock.sleep(5)
        assert (one.unready_reason(), two.unready_reason()) == ("", "")
        secret = await lab.client.get(SECRETS, SECRET, NAMESPACE)
        found = read_secret(dict(secret.data))
        assert found is not None
        assert await lab.bundle() == found.bundle
    writes = [(e.verb, e.resource) for e in lab.server.audit.writes(name=SECRET)]
    assert len(writes) <= 1, "the second replica takes what the first has made"


async def test_it_is_renewed_at_two_thirds_of_its_life_with_both_trusted(lab: Lab) -> None:
    await lab.configure()
    async with lab.replica(1, certificate_days=1), lab.replica(2, certificate_days=1):
        await lab.clock.sleep(5)
        first = await lab.bundle()
        await lab.clock.sleep(15 * HOUR)
        assert await lab.bundle() == first
        await lab.clock.sleep(1 * HOUR)
        second = await lab.bundle()
        assert authority_fingerprints(first) < authority_fingerprints(second)


class SetClock(LoopClock):
    """A clock whose date can be set, as after a machine's sleep."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


async def test_a_clock_that_leaps_over_the_certificates_end_is_noticed_within_the_hour(lab: Lab) -> None:
    clock = lab.clock = SetClock(1_700_000_000.0)
    await lab.configure()
    async with lab.replica(certificate_days=90):
        await lab.clock.sleep(5)
        first = await lab.bundle()
        clock.ahead = 100 * 24 * HOUR
        await lab.clock.sleep(HOUR + 5)
        assert await lab.bundle() != first


async def test_a_bundle_that_somebody_removed_is_written_again(lab: Lab) -> None:
    await lab.configure()
    async with lab.replica():
        await lab.clock.sleep(5)
        before = await lab.bundle()
        await lab.client.delete(MUTATING_WEBHOOKS, NAME)
        await lab.configure()
        await lab.clock.sleep(5)
        assert await lab.bundle() == before


async def test_a_broken_secret_is_replaced(lab: Lab) -> None:
    await lab.configure()
    data = {"tls.crt": base64.b64encode(b"x").decode(), "tls.key": ""}
    await lab.client.create(SECRETS, {"metadata": {"name": SECRET}, "data": data}, NAMESPACE)
    async with lab.replica() as webhook:
        await lab.clock.sleep(5)
        assert webhook.unready_reason() == ""


async def test_cards_that_come_change_or_return_after_a_pause_of_the_watch_are_known(lab: Lab) -> None:
    def cards(profile: str) -> dict[str, Any]:
        table = {profile: {"placements": [{"size": 1, "start": 0}], "giProfileId": 20, "ciProfileId": 0}}
        return {"status": {"nodeResources": {"nodeGpus": [], "migPlacement": table}}}

    async def write(profile: str) -> None:
        await lab.client.merge_patch(INSTASLICES, "n", cards(profile), OBJECTS, subresource="status")
        await lab.clock.sleep(5)

    await lab.configure()
    await lab.client.create(INSTASLICES.as_dicts(), {"metadata": {"name": "n"}, "spec": {}}, OBJECTS)
    async with lab.replica() as webhook:
        await lab.clock.sleep(5)
        assert not webhook.capabilities.on_demand
        await write("1g.5gb")
        assert set(webhook.capabilities.on_demand) == {"1g.5gb"}
        await write("2g.10gb")
        assert "2g.10gb" in webhook.capabilities.on_demand
        lab.server.end_watches()
        await lab.client.delete(INSTASLICES, "n", OBJECTS)
        await lab.client.create(INSTASLICES.as_dicts(), {"metadata": {"name": "n"}, "spec": {}}, OBJECTS)
        await lab.clock.sleep(60)
        assert not webhook.capabilities.on_demand
        await write("3g.20gb")
        assert set(webhook.capabilities.on_demand) == {"3g.20gb"}


async def test_every_review_is_counted_by_what_came_of_it(lab: Lab) -> None:
    async with lab.replica() as webhook:
        webhook.review(review(POD))
        webhook.review(review({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}))
        wrong = {"metadata": {"name": "p", "annotations": {"tessera.dev/gpu-memroy": "10Gi"}}, "spec": POD["spec"]}
        webhook.review(review(wrong))
        for body in (b"", b"{}", b"[" * 1000):
            with pytest.raises(ReviewError):
                webhook.review(body)
        text = generate_latest(webhook.metrics.registry).decode()
        counted = {"patched": 1, "untouched": 1, "refused": 1, "malformed": 3}
        for verdict, count in counted.items():
            assert f'tessera_reviews_total{{verdict="{verdict}"}} {count}.0' in text
        assert "tessera_review_seconds_count 6.0" in text
        assert 'tessera_refusals_total{rule="requirement"} 1.0' in text
        assert 'tessera_refusals_total{rule="quota"} 0.0' in text


async def test_tls_serves_the_certificate_that_was_loaded_last() -> None:
    open_at: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    options = WebhookOptions(
        address="127.0.0.1", port=0, health_port=None, on_listening=lambda _host, port: open_at.set_result(port)
    )
    context = server_context()
    first, second = (issue(["127.0.0.1"], SystemClock().now(), days=1) for _ in range(2))
    load_certificate(context, first)
    server = asyncio.create_task(serve_reviews(options, context, {"/mutate-v1-pod": bytes.upper}))
    url = f"https://127.0.0.1:{await open_at}/mutate-v1-pod"
    try:
        assert await post(url, first.bundle, b"hello") == b"HELLO"
        load_certificate(context, second)
        assert await post(url, second.bundle, b"again") == b"AGAIN"
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await post(url, first.bundle, b"old")
    finally:
        server.cancel()
        await asyncio.wait({server})


async def post(url: str, bundle: bytes, body: bytes) -> bytes:
    context = ssl.create_default_context(cadata=bundle.decode())
    async with aiohttp.ClientSession() as session, session.post(url, data=body, ssl=context) as answer:
        return await answer.read()
