"""Keeps the certificate: in the Secret, in the API server's trust, and in what is served.

Every replica runs this, none leads: the Secret is created or patched by compare-and-swap, and whoever loses sees the
winner's in its watch. The order (Secret, then trust, then serving) is that of :mod:`tessera.webhook.certificates`.
Between changes and the day that the certificate is due, this sleeps.
"""

import asyncio
import base64
import logging
import random
from collections.abc import Callable, Sequence

from tessera.clock import Clock
from tessera.kube.backoff import Backoff
from tessera.kube.cache import Event
from tessera.kube.client import Client
from tessera.kube.errors import AlreadyExists, ApiError, Conflict
from tessera.kube.informer import Informer
from tessera.kube.resources import MUTATING_WEBHOOKS, SECRETS, Secret, WebhookConfiguration
from tessera.webhook.certificates import Certificate, authorities, due, due_at, issue, stored
from tessera.webhook.options import WebhookOptions

_log = logging.getLogger(__name__)

#: Seconds between the API server's trust and a renewed certificate's first use: API servers learn by watch.
_SPREAD = 60.0
#: Longest pause before the certificate's age is looked at again: waits do not see a clock that was set, or a machine
#: that was asleep.
_LOOK_AGAIN = 3600.0


class Keeper:
    """Makes, renews and hands out the certificate.

    Args:
        options: names of the objects.
        client: the API server.
        clock: the time.
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
        self._served: Certificate | None = None
        self._changed = asyncio.Event()
        self._backoff = Backoff(rng)
        self._secrets = Informer(
            client,
            SECRETS,
            namespace=options.namespace,
            field_selector=f"metadata.name={options.secret}",
            clock=clock,
            rng=rng,
        )
        self._configurations = Informer(
            client, MUTATING_WEBHOOKS, field_selector=f"metadata.name={options.configuration}", clock=clock, rng=rng
        )

    @property
    def served(self) -> bool:
        """Whether a certificate is served that the API server trusts."""
        return self._served is not None

    @property
    def names(self) -> Sequence[str]:
        """What the certificate is made out to."""
        service = f"{self._options.service}.{self._options.namespace}.svc"
        return (service, f"{service}.cluster.local", *self._options.extra_names)

    async def run(self) -> None:
        """Keeps the certificate until cancelled."""
        self._secrets.add_handler(self._stir)
        self._configurations.add_handler(self._stir)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._secrets.run())
            group.create_task(self._configurations.run())
            await self._secrets.wait_synced()
            await self._configurations.wait_synced()
            while True:
                self._changed.clear()
                await self._wait(await self._attempt())

    def _stir(self, _event: Event[Secret] | Event[WebhookConfiguration]) -> None:
        self._changed.set()

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _attempt(self) -> float | None:
        """One look at everything; seconds until the next one without a change, None for never."""
        try:
            wait = await self._advance()
        except (Conflict, AlreadyExists):
            return self._backoff.next()  # another replica was faster: its write is on the way to us
        except (ApiError, ConnectionError, TimeoutError) as error:
            pause = self._backoff.next()
            _log.warning("webhook certificate: %s; again in %.1f s", error, pause)
            return pause
        self._backoff.reset()
        return wait

    async def _advance(self) -> float | None:
        secret = self._secrets.cache.get(f"{self._options.namespace}/{self._options.secret}")
        found = stored(dict(secret.data)) if secret is not None else None
        if found is None or due(found, self.names, self._clock.now()):
            await self._renew(secret, found)
            return None
        if not await self._trusted(found):
            return None
        if found != self._served:
            if self._served is not None:
                await self._clock.sleep(_SPREAD)
            self._serve(found)
            self._served = found
        return min(_LOOK_AGAIN, max(0.0, due_at(found) - self._clock.now()))

    async def _renew(self, secret: Secret | None, found: Certificate | None) -> None:
        """Writes the next certificate; the watch brings it back."""
        before = found.bundle if found is not None else b""
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

    async def _trusted(self, found: Certificate) -> bool:
        """Makes the API server trust the certificate; False while there is no configuration to write to.

        Nothing is written if all of our authorities are trusted already, so that a replica that is behind does not
        take back what one that is ahead has written.
        """
        item = self._configurations.cache.get(self._options.configuration)
        if item is None:
            return False
        ours = authorities(found.bundle)
        lacking = [one.name for one in item.webhooks if not ours <= authorities(one.client_config.ca_bundle)]
        if lacking:
            bundle = base64.b64encode(found.bundle).decode()
            webhooks = [{"name": one.name, "clientConfig": {"caBundle": bundle}} for one in item.webhooks]
            await self._client.apply(MUTATING_WEBHOOKS, self._options.configuration, {"webhooks": webhooks})
        return True
