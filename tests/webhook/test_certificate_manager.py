"""Whatever happens to the webhook's Secret, what each replica serves is trusted: no pod is refused for it."""

import asyncio
import base64
import random
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import pytest
from cryptography import x509
from tests.webhook.conftest import ADMIN, NAME, NAMESPACE, SECRET, Lab, in_lab

from tessera.kube.client import Client
from tessera.kube.resources import MUTATING_WEBHOOKS, SECRETS
from tessera.webhook.base import WebhookOptions
from tessera.webhook.certificate_manager import CertificateManager
from tessera.webhook.certificates import Certificate, is_valid, issue
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport

NAMES = [f"{NAME}.{NAMESPACE}.svc", f"{NAME}.{NAMESPACE}.svc.cluster.local"]


class Replicas:
    """Keepers side by side, and a look at all of them twice a second."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.serving: dict[int, Certificate] = {}
        self.distrusted: list[str] = []
        self.pace = 0.5

    async def run(self, number: int, **options: Any) -> None:
        client = Client(
            InProcessTransport(self.lab.server, ADMIN), field_manager="tessera-webhook", clock=self.lab.clock
        )

        def serve(certificate: Certificate) -> None:
            self.serving[number] = certificate

        chosen = WebhookOptions(**options)
        await CertificateManager(chosen, client, self.lab.clock, rng=random.Random(number), serve=serve).run()

    async def watch(self) -> None:
        while True:
            await self.lab.clock.sleep(self.pace)
            bundle = x509.load_pem_x509_certificates(await self.lab.bundle())
            for number, serving in self.serving.items():
                if not (
                    is_valid(serving, self.lab.clock.now()) and any(signed(serving.certificate, one) for one in bundle)
                ):
                    self.distrusted.append(f"{self.lab.clock.now():.1f}: replica {number}")


@cache
def signed(serving: bytes, authority: x509.Certificate) -> bool:
    """Remembered, since the same few certificates are looked at some thousand times."""
    try:
        x509.load_pem_x509_certificate(serving).verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - it is not
        return False
    return True


def with_replicas(story: Callable[[Lab, Replicas], Awaitable[None]], **options: Any) -> None:
    async def run(lab: Lab) -> None:
        await lab.configure()
        replicas = Replicas(lab)
        tasks = [asyncio.create_task(replicas.run(number, **options)) for number in range(2)]
        await lab.clock.sleep(5)
        tasks.append(asyncio.create_task(replicas.watch()))
        try:
            assert len(replicas.serving) == 2
            await story(lab, replicas)
            assert not [each for each in tasks if each.done()]
            assert replicas.distrusted == []
            assert len(set(replicas.serving.values())) == 1
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    in_lab(run)


def data(certificate: Certificate) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in certificate.data().items()}


def test_a_secret_that_is_lost() -> None:
    async def story(lab: Lab, replicas: Replicas) -> None:
        before = replicas.serving[0]
        for _ in range(3):
            await lab.client.delete(SECRETS, SECRET, NAMESPACE)
            await lab.clock.sleep(20)
        await lab.clock.sleep(120)
        assert replicas.serving[0] != before

    with_replicas(story)


@pytest.mark.parametrize("junk", ["text", "expired", "tomorrow", "others"])
def test_a_secret_that_is_spoilt(junk: str) -> None:
    async def story(lab: Lab, replicas: Replicas) -> None:
        now = lab.clock.now()
        made = {
            "text": {"tls.crt": "eA==", "tls.key": "", "ca.crt": "eA=="},
            "expired": data(issue(NAMES, now - 10 * 86400, days=1)),
            "tomorrow": data(issue(NAMES, now + 86400, days=1)),
            "others": data(issue(["example.com"], now, days=90)),
        }[junk]
        await lab.client.merge_patch(SECRETS, SECRET, {"data": made}, NAMESPACE)
        await lab.clock.sleep(200)

    with_replicas(story)


def test_a_certificate_that_somebody_else_made_is_taken_once_it_is_trusted() -> None:
    async def story(lab: Lab, replicas: Replicas) -> None:
        other = issue(NAMES, lab.clock.now(), days=90)
        await lab.client.merge_patch(SECRETS, SECRET, {"data": data(other)}, NAMESPACE)
        await lab.clock.sleep(200)
        assert replicas.serving[0] == other

    with_replicas(story)


def test_a_rotation() -> None:
    async def story(lab: Lab, replicas: Replicas) -> None:
        before = replicas.serving[0]
        replicas.pace = 20.0
        await lab.clock.sleep(17 * 3600)
        assert replicas.serving[0] != before

    with_replicas(story, certificate_days=1)


def test_a_secret_that_is_lost_in_the_middle_of_a_rotation() -> None:
    async def story(lab: Lab, replicas: Replicas) -> None:
        now = lab.clock.now()
        await lab.client.merge_patch(SECRETS, SECRET, {"data": data(issue(NAMES, now, days=90))}, NAMESPACE)
        await lab.clock.sleep(30)
        await lab.client.delete(SECRETS, SECRET, NAMESPACE)
        await lab.clock.sleep(200)

    with_replicas(story)


def test_a_bundle_that_was_spoilt_is_mended_and_the_new_certificate_is_not_waited_for() -> None:
    async def story(lab: Lab, replicas: Replicas) -> None:
        stranger = base64.b64encode(issue(["example.com"], lab.clock.now(), days=1).bundle).decode()
        before = replicas.serving[0]
        await lab.client.delete(SECRETS, SECRET, NAMESPACE)
        found = await lab.client.get(MUTATING_WEBHOOKS, NAME)
        hooks = [{"name": each.name, "clientConfig": {"caBundle": stranger}} for each in found.webhooks]
        await lab.client.apply(MUTATING_WEBHOOKS, NAME, {"webhooks": hooks}, force=True)
        await lab.clock.sleep(5)
        replicas.distrusted.clear()  # until the write had been seen
        await lab.clock.sleep(100)
        assert replicas.serving[0] != before

    with_replicas(story)
