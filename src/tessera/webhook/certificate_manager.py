"""Renews the webhook's certificate: in the Secret, in the API server's trust, and at the server.

Every replica runs this and none leads: a replica creates or patches the Secret by compare-and-swap, and a replica that
loses sees the winner's certificate in its watch. The order (Secret, then trust, then serving) is that of
:mod:`tessera.webhook.certificates`. The manager sleeps until a change or the renewal time.

A :class:`GivenCertificate` serves the certificate of a Secret that others renew, such as cert-manager.

The webhook writes nothing here: neither the Secret nor the API server's trust, which cert-manager's injector writes.
A new certificate is served once the API server trusts its authority. Until then the webhook serves the one before; if
that is no longer trusted, reviews fail until the injector has done its work.
"""

import asyncio
import base64
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tessera.clock import Clock, until_set
from tessera.kube.cache import WatchEvent
from tessera.kube.client import Client
from tessera.kube.errors import AlreadyExists, ApiError, Conflict
from tessera.kube.informer import ObjectInformer
from tessera.kube.resources import MUTATING_WEBHOOKS, SECRETS, Secret, WebhookConfiguration
from tessera.kube.retries import Backoff
from tessera.webhook.base import WebhookOptions
from tessera.webhook.certificates import (
    BUNDLE,
    CERTIFICATE,
    KEY,
    Certificate,
    authority_fingerprints,
    is_valid,
    issue,
    join_bundles,
    needs_renewal,
    read_secret,
    renewal_time,
    widen_trust,
)


def watch_objects(
    options: WebhookOptions, secret: str, client: Client, clock: Clock, rng: random.Random
) -> tuple[ObjectInformer[Secret], ObjectInformer[WebhookConfiguration]]:
    """Informers of the Secret with this name, and of the webhook configuration; neither is started yet."""
    return (
        ObjectInformer(client, SECRETS, secret, namespace=options.namespace, clock=clock, rng=rng),
        ObjectInformer(client, MUTATING_WEBHOOKS, options.configuration, clock=clock, rng=rng),
    )


_log = logging.getLogger(__name__)


async def keep_trusted(
    check: Callable[[], Awaitable[float | None]], changed: asyncio.Event, backoff: Backoff, what: str
) -> None:
    """Checks a certificate until cancelled: at once, at each change, and when the check before said.

    Args:
        check: renews, publishes and serves what is due; returns the seconds until it has to be called again without a
            change, None for never.
        changed: set when an object has changed; it ends a pause after a failure too.
        backoff: the pauses after failures.
        what: the certificate, for the log.
    """
    while True:
        changed.clear()
        try:
            pause = await check()
            backoff.reset()
        except (Conflict, AlreadyExists):
            pause = backoff.next()  # another replica was faster: the watch will bring its write
        except (ApiError, OSError) as error:
            pause = backoff.next()
            _log.warning("%s: %s; again in %.1f s", what, error, pause)
        await until_set(changed, pause)


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
        secret = self._secrets.object
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
        configuration = self._configurations.object
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


#: Seconds between the API server's trust and a renewed certificate's first use: API servers learn of it by watch.
_SPREAD = 60.0
#: Longest pause between two checks of the certificate's age: a longer wait would ignore that the clock was set or the
#: machine slept meanwhile.
_CHECK_AGAIN = 60.0
_END = b"-----END CERTIFICATE-----\n"


class CertificateManager:
    """Makes, renews and distributes the certificate.

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
        self._client = client
        self._clock = clock
        self._serve = serve
        #: The certificate of the server; None before the first.
        self._served: Certificate | None = None
        #: The Secret as last read, and the certificate in it: it is checked again only when it has changed.
        self._secret: Secret | None = None
        self._found: Certificate | None = None
        #: The certificate that the server will use next, from this monotonic time on.
        self._next: Certificate | None = None
        self._next_at = 0.0
        #: The last certificate that OpenSSL refused; it is replaced.
        self._unusable: Certificate | None = None
        self._changed = asyncio.Event()
        self._backoff = Backoff(rng)
        self._secrets, self._configurations = watch_objects(options, options.secret, client, clock, rng)

    @property
    def unready_reason(self) -> str:
        """Reason that the webhook serves no certificate; empty if it serves one that the API server trusts."""
        return "" if self._served is not None else "no certificate is trusted by the API server yet"

    @property
    def names(self) -> Sequence[str]:
        """Returns the names of the certificate."""
        service = f"{self._options.service}.{self._options.namespace}.svc"
        return (service, f"{service}.cluster.local", *self._options.extra_names)

    async def run(self) -> None:
        """Keeps the certificate valid and trusted until cancelled."""
        self._secrets.add_handler(self._object_changed)
        self._configurations.add_handler(self._object_changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._secrets.run())
            group.create_task(self._configurations.run())
            await self._secrets.wait_synced()
            await self._configurations.wait_synced()
            await keep_trusted(self._advance, self._changed, self._backoff, "webhook certificate")

    def _object_changed(self, _event: WatchEvent[Secret] | WatchEvent[WebhookConfiguration]) -> None:
        self._changed.set()

    async def _advance(self) -> float | None:
        """Checks everything once; returns the seconds until the next check without a change, None for never."""
        secret = self._secrets.object
        if secret is not self._secret:
            self._secret, self._found = secret, read_secret(dict(secret.data)) if secret is not None else None
        found = self._found
        now = self._clock.now()
        if found is None or found == self._unusable or needs_renewal(found, self.names, now):
            await self._protect_served(now)
            await self._renew(secret, found)
            return None
        trusted_before = self._served is not None and is_valid(self._served, now) and self._trusts(self._served.bundle)
        if not await self._make_trusted(found.bundle, now):
            return None
        if found != self._served:
            wait = self._seconds_until_use(found, trusted_before=trusted_before)
            if wait > 0:
                return wait
            self._start_serving(found)
        return min(_CHECK_AGAIN, max(0.0, renewal_time(found) - now))

    def _seconds_until_use(self, found: Certificate, *, trusted_before: bool) -> float:
        """Seconds until a certificate may be served: 0 for the first, or if the served one is unusable."""
        if found != self._next:
            self._next, self._next_at = found, self._clock.monotonic() + _SPREAD
        if not trusted_before:
            return 0.0
        return self._next_at - self._clock.monotonic()

    def _start_serving(self, found: Certificate) -> None:
        try:
            self._serve(found)
        except ssl.SSLError as error:
            _log.warning("secret %s: not served: %s", self._options.secret, error)
            self._unusable = found
            self._changed.set()
        else:
            self._served = found

    async def _protect_served(self, now: float) -> None:
        """Keeps the authority of the served certificate trusted, also if the Secret is lost or damaged."""
        if self._served is not None and is_valid(self._served, now):
            await self._make_trusted(self._served.bundle, now)

    async def _renew(self, secret: Secret | None, found: Certificate | None) -> None:
        """Writes the next certificate; the watch will bring it back."""
        bundles = [one.bundle for one in (found, self._served) if one is not None]
        before = b"".join([*bundles, *self._trusted_bundles()])
        made = issue(self.names, self._clock.now(), self._options.certificate_days, before)
        data = {name: base64.b64encode(value).decode() for name, value in made.data().items()}
        where = self._options.namespace
        if secret is None:
            body = {"metadata": {"name": self._options.secret}, "type": "kubernetes.io/tls", "data": data}
            await self._client.create(SECRETS, body, where)
        else:
            version = secret.metadata.resource_version
            await self._client.merge_patch(
                SECRETS, self._options.secret, {"data": data}, where, resource_version=version
            )
        _log.info("secret %s/%s holds a new webhook certificate", where, self._options.secret)

    def _trusted_bundles(self) -> Sequence[bytes]:
        """Returns the bundles of the configuration's webhooks."""
        item = self._configurations.object
        return () if item is None else tuple(dict.fromkeys(one.client_config.ca_bundle for one in item.webhooks))

    def _trusts(self, bundle: bytes) -> bool:
        """True if every webhook of the configuration trusts the first authority of a bundle, which signed."""
        first = authority_fingerprints(join_bundles([bundle], self._clock.now()).partition(_END)[0] + _END)
        return all(first <= authority_fingerprints(each) for each in self._trusted_bundles())

    async def _make_trusted(self, bundle: bytes, now: float) -> bool:
        """Adds authorities to those that the API server trusts; False while there is no configuration to write to."""
        item = self._configurations.object
        if item is None:
            return False
        served = [self._served.bundle] if self._served is not None else []
        text = widen_trust(self._trusted_bundles(), [bundle, *served], now)
        if text is None:
            return True
        webhooks = [{"name": one.name, "clientConfig": {"caBundle": text}} for one in item.webhooks]
        await self._client.apply(MUTATING_WEBHOOKS, self._options.configuration, {"webhooks": webhooks})
        return True
