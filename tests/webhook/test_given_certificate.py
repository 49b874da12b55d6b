"""A certificate that cert-manager renews: served once it is trusted, and never written by the webhook."""

import base64
import ssl
from typing import Any

import pytest
from tests.webhook.conftest import NAME, NAMESPACE, Lab

from tessera.kube.resources import MUTATING_WEBHOOKS, SECRETS
from tessera.webhook.certificates import Certificate, issue
from tessera.webhook.main import WebhookReplica

SECRET = "tessera-webhook-tls"
PLACE = f"Secret {NAMESPACE}/{SECRET}"
NAMES = [f"{NAME}.{NAMESPACE}.svc"]


def made(lab: Lab, days: int = 90) -> Certificate:
    return issue(NAMES, lab.clock.now(), days)


async def write(lab: Lab, **parts: bytes) -> None:
    """Writes the Secret, as cert-manager does."""
    names = {"certificate": "tls.crt", "key": "tls.key", "bundle": "ca.crt"}
    data = {names[part]: base64.b64encode(value).decode() for part, value in parts.items()}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE}, "data": data}
    await lab.client.apply(SECRETS, SECRET, body, NAMESPACE)
    await lab.clock.sleep(1)


async def inject(lab: Lab, bundle: bytes) -> None:
    """Writes the authority into the configuration, as cert-manager's injector does."""
    configuration = await lab.client.get(MUTATING_WEBHOOKS, NAME)
    text = base64.b64encode(bundle).decode()
    webhooks = [{"name": each.name, "clientConfig": {"caBundle": text}} for each in configuration.webhooks]
    await lab.client.apply(MUTATING_WEBHOOKS, NAME, {"webhooks": webhooks})
    await lab.clock.sleep(1)


def whole(found: Certificate, **other: bytes) -> dict[str, bytes]:
    return {"certificate": found.certificate, "key": found.key, "bundle": found.bundle, **other}


def served(replica: WebhookReplica) -> bytes:
    """The certificate that a client gets."""
    context: Any = replica._context
    server, client = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    asking = trusting.wrap_bio(server, client)
    answering = context.wrap_bio(client, server, server_side=True)
    for step in (asking, answering, asking, answering):
        try:
            step.do_handshake()
        except ssl.SSLWantReadError:
            continue
    found = asking.getpeercert(binary_form=True)
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found).encode()


async def test_it_is_served_once_the_api_server_trusts_its_authority(lab: Lab) -> None:
    await lab.configure()
    async with lab.replica(given_secret=SECRET) as replica:
        await lab.clock.sleep(5)
        assert replica.unready_reason().startswith(f"{PLACE} does not exist; cert-manager makes it")
        first = made(lab)
        await write(lab, **whole(first))
        assert "does not trust yet; cert-manager's injector adds it" in replica.unready_reason()
        await inject(lab, first.bundle)
        assert replica.unready_reason() == ""
        assert served(replica) == first.certificate


async def test_a_renewed_one_replaces_it_and_a_damaged_one_does_not(lab: Lab) -> None:
    await lab.configure()
    async with lab.replica(given_secret=SECRET) as replica:
        first, second = made(lab), made(lab)
        await inject(lab, first.bundle + second.bundle)
        await write(lab, **whole(first))
        assert served(replica) == first.certificate
        await write(lab, **whole(first, key=second.key))
        await write(lab, **whole(first, certificate=b""))
        assert served(replica) == first.certificate
        assert replica.unready_reason() == ""
        await write(lab, **whole(second))
        assert served(replica) == second.certificate


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"certificate": b"x"}, "has no readable tls.crt and tls.key"),
        ({"bundle": b""}, "has no readable ca.crt; use an issuer that writes its authority there"),
    ],
)
async def test_what_is_wrong_with_a_secret_is_named(lab: Lab, wrong: dict[str, bytes], text: str) -> None:
    await lab.configure()
    async with lab.replica(given_secret=SECRET) as replica:
        await write(lab, **whole(made(lab), **wrong))
        await lab.clock.sleep(5)
        assert replica.unready_reason() == f"{PLACE} {text}"


async def test_an_expired_one_is_named(lab: Lab) -> None:
    await lab.configure()
    old = made(lab, days=1)
    await lab.clock.sleep(3 * 86_400)
    async with lab.replica(given_secret=SECRET) as replica:
        await write(lab, **whole(old))
        await lab.clock.sleep(5)
        assert "is not valid now; look at the Certificate's conditions" in replica.unready_reason()


async def test_the_webhook_writes_nothing(lab: Lab) -> None:
    await lab.configure()
    first = made(lab)
    await inject(lab, first.bundle)
    await write(lab, **whole(first))
    before = len(list(lab.server.audit))
    async with lab.replica(given_secret=SECRET) as replica:
        await lab.clock.sleep(100)
        assert replica.unready_reason() == ""
    assert {each.verb for each in list(lab.server.audit)[before:]} <= {"list", "watch"}
