"""Serves the certificate of a Secret that others renew, such as cert-manager.

The webhook writes nothing here: neither the Secret nor the API server's trust, which cert-manager's injector writes.
A new certificate is served once the API server trusts its authority. Until then the webhook serves the one before; if
that is no longer trusted, reviews fail until the injector has done its work.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.resources import MUTATING_WEBHOOKS, SECRETS, Secret, WebhookConfiguration
from tessera.kube.watch.informer import Informer
from tessera.webhook.base import WebhookOptions
from tessera.webhook.serving.certificates import BUNDLE, CERTIFICATE, KEY, Certificate, authority_fingerprints, is_valid


def watch_objects(
    options: WebhookOptions, secret: str, client: Client, clock: Clock, rng: random.Random
) -> tuple[Informer[Secret], Informer[WebhookConfiguration]]:
    """Informers of the Secret with this name, and of the webhook configuration; neither is started yet."""
    named = f"metadata.name={options.configuration}"
    secrets = Informer(
        client, SECRETS, namespace=options.namespace, field_selector=f"metadata.name={secret}", clock=clock, rng=rng
    )
    return secrets, Informer(client, MUTATING_WEBHOOKS, field_selector=named, clock=clock, rng=rng)


_log = logging.getLogger(__name__)


class GivenCertificate:
    """Follows the Secret, and serves what is in it.

    Args:
        options: names of the objects.
        client: the API server.
        clock: gives the time.
        rng: for jitter.
        serve: called with each certificate once the API server trusts it.
    """

    def __init__(
        self,
        options: WebhookOptions,
        client: Client,
        clock: Clock,
        *,
        rng: random.Random,
        serve: Callable[[Certificate], None],
    ) -> None:
        self._options = options
        self._clock = clock
        self._serve = serve
        self._served: Certificate | None = None
        self._reason = "is not read yet"
        self._secrets, self._configurations = watch_objects(options, options.given_secret, client, clock, rng)

    @property
    def unready_reason(self) -> str:
        """Reason that the webhook serves no certificate; empty if it serves one."""
        if self._served is not None:
            return ""
        return f"Secret {self._options.namespace}/{self._options.given_secret} {self._reason}"

    async def run(self) -> None:
        """Follows the objects until cancelled."""
        self._secrets.add_handler(lambda _event: self._update())
        self._configurations.add_handler(lambda _event: self._update())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._secrets.run())
            group.create_task(self._configurations.run())
            await self._secrets.wait_synced()
            self._update()

    def _update(self) -> None:
        """Serves the certificate if it can be served now; else notes the reason."""
        secret = self._secrets.cache.get(f"{self._options.namespace}/{self._options.given_secret}")
        if secret is None:
            self._refuse("does not exist; cert-manager makes it for the Certificate tessera-webhook")
            return
        data = dict(secret.data)
        found = Certificate(data.get(CERTIFICATE, b""), data.get(KEY, b""), data.get(BUNDLE, b""))
        if found == self._served:
            return
        if problem := _problem(found) or self._present_problem(found):
            self._refuse(problem)
            return
        try:
            self._serve(found)
        except ssl.SSLError as error:
            self._refuse(f"has a certificate that OpenSSL refuses: {error}")
        else:
            self._served = found
            _log.info("serving a new certificate of secret %s", self._options.given_secret)

    def _present_problem(self, found: Certificate) -> str:
        if not is_valid(found, self._clock.now()):
            return "has a certificate that is not valid now; look at the Certificate's conditions"
        if not self._is_trusted(found):
            return "has an authority that the API server does not trust yet; cert-manager's injector adds it"
        return ""

    def _refuse(self, reason: str) -> None:
        if reason != self._reason:
            self._reason = reason
            _log.warning("secret %s/%s %s", self._options.namespace, self._options.given_secret, reason)

    def _is_trusted(self, found: Certificate) -> bool:
        configuration = self._configurations.cache.get(self._options.configuration)
        if configuration is None:
            return False
        wanted = authority_fingerprints(found.bundle)
        return all(wanted <= authority_fingerprints(each.client_config.ca_bundle) for each in configuration.webhooks)


def _problem(found: Certificate) -> str:
    """What is wrong with a certificate; empty for nothing. The first one of a chain is the webhook's own."""
    try:
        serving = x509.load_pem_x509_certificates(found.certificate)[0]
        key = serialization.load_pem_private_key(found.key, None)
    except (ValueError, TypeError):
        return f"has no readable {CERTIFICATE} and {KEY}"
    if serving.public_key() != key.public_key():
        return f"has a {KEY} that is not that of {CERTIFICATE}"
    if not authority_fingerprints(found.bundle):
        return f"has no readable {BUNDLE}; use an issuer that writes its authority there"
    return ""
