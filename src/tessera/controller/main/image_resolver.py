"""The resolver of driver images that asks real registries, as the controller's options say."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tessera.clock import Clock
from tessera.controller.base.options import ControllerOptions
from tessera.driver.images.persistent_resolver import PersistentResolver
from tessera.driver.images.resolver import RegistryResolver
from tessera.driver.registry.authorities import read_authorities
from tessera.driver.registry.client import RegistryClient
from tessera.driver.registry.pull_secrets import PullSecrets
from tessera.driver.registry.wire import RegistryHttp, Trust
from tessera.driver.resolution import Resolver
from tessera.kube.client.client import Client


@asynccontextmanager
async def registries(
    options: ControllerOptions, client: Client, clock: Clock, rng: random.Random
) -> AsyncIterator[Resolver]:
    """A resolver for as long as the process lives. Nothing is connected before something is asked.

    Raises:
        AuthoritiesError: the file of authorities cannot be read, or holds none.
    """
    authorities = read_authorities(options.registries.ca) if options.registries.ca is not None else ""
    trust = Trust(authorities=authorities, plain=options.registries.plain_http)
    asked = RegistryClient(RegistryHttp(trust), clock)
    resolver = RegistryResolver(clock, client=asked, secrets=PullSecrets(client, options.namespace), rng=rng)
    memory = PersistentResolver(resolver, client, clock, namespace=options.namespace, rng=rng)
    writing = asyncio.create_task(memory.run(), name="image memory")
    try:
        yield memory
    finally:
        writing.cancel()
        await asyncio.wait([writing])
        await resolver.close()
