"""Drivers as a satellite of the controller: one resolver for the process, so that its answers outlive a term."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.controller.satellite import Process, Task, Term
from tessera.driver.images import Resolver
from tessera.driver.next_kernels import CoverageMetrics
from tessera.driver.registry.client import RegistryClient, RegistryOptions
from tessera.driver.registry.credentials import PullSecrets, read_authorities
from tessera.driver.registry.resolver import PersistentResolver, RegistryResolver
from tessera.driver.registry.wire import RegistryHttp, Trust
from tessera.driver.rollout.rollout import RolloutMetrics
from tessera.driver.run import DriverOptions, Drivers


@dataclass(frozen=True, kw_only=True)
class DriverSatellite:
    """Installs drivers, where a ClusterPolicy turns that on.

    Attributes:
        options: see :class:`~tessera.driver.run.DriverOptions`.
        registries: access to the registries of driver images.
        namespace: namespace of pull secrets and of the memory of images, the deployment's.
        resolver: looks images up; None asks registries.
    """

    options: DriverOptions = field(default_factory=DriverOptions)
    registries: RegistryOptions = field(default_factory=RegistryOptions)
    namespace: str = SYSTEM_NAMESPACE
    resolver: Resolver | None = None

    def open(self, process: Process) -> Callable[[Term], None]:
        """See :class:`~tessera.controller.satellite.Satellite`."""
        rollout, coverage = RolloutMetrics(process.registry), CoverageMetrics(process.registry)

        resolver = self.resolver or open_image_resolver(self.registries, self.namespace, process)

        def join(term: Term) -> None:
            drivers = Drivers(
                term.runtime,
                resolver=resolver,
                nodes=term.nodes,
                pods=term.pods,
                options=self.options,
                events=term.events,
                metrics=rollout,
                coverage=coverage,
            )
            term.tasks.append(Task(name="drivers", run=drivers.run, at_once=True))

        return join


def open_image_resolver(options: RegistryOptions, namespace: str, process: Process) -> Resolver:
    """Returns a resolver that lasts as long as the process. It connects to a registry only at the first look-up.

    Raises:
        AuthoritiesError: the file of authorities cannot be read, or has none.
    """
    client, clock, rng = process.client, process.clock, process.rng
    authorities = read_authorities(options.ca) if options.ca is not None else ""
    registry = RegistryClient(RegistryHttp(Trust(authorities=authorities, plain=options.plain_http)), clock)
    resolver = RegistryResolver(clock, client=registry, secrets=PullSecrets(client, namespace), rng=rng)
    memory = PersistentResolver(resolver, client, clock, namespace=namespace, rng=rng)
    writing = asyncio.create_task(memory.run(), name="image memory")

    async def close() -> None:
        writing.cancel()
        await asyncio.wait([writing])
        await resolver.close()

    process.at_end.push_async_callback(close)
    return memory
