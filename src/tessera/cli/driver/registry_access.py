"""How a command reaches registries: whom it trusts, who it is, and which of them it asks over plain HTTP."""

import functools
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from tessera.cli.base.connection import CommandError

if TYPE_CHECKING:
    from tessera.driver.images.resolver import Secrets
    from tessera.driver.registry.client import RegistryClient
    from tessera.driver.registry.keyring import Keyring
    from tessera.driver.registry.pull_secrets import PullSecrets
    from tessera.driver.resolution import Resolver


T = TypeVar("T")


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say.

    Attributes:
        auth: a file of credentials; None for the one that a login has left, if there is one.
        ca: certificates that are trusted beside the system's.
        plain: hosts that are asked over plain HTTP; ``*`` is all.
    """

    auth: Path | None = None
    ca: Path | None = None
    plain: tuple[str, ...] = ()

    def keyring(self) -> "Keyring":
        """The credentials.

        Raises:
            CredentialsError: the file is none.
        """
        from tessera.driver.registry.keyring import Keyring, default_docker_config, read_docker_config

        path = self.auth or default_docker_config(os.environ)
        return read_docker_config(path) if path else Keyring()


class Registries(msgspec.Struct, frozen=True):
    """What asks registries.

    Attributes:
        client: asks them anew each time.
        resolver: remembers; of a lab's simulated registries, asks the lab.
        keyring: credentials of this machine.
        secrets: those, behind the ones in pull secrets of the cluster.
    """

    client: "RegistryClient"
    resolver: "Resolver"
    keyring: "Keyring"
    secrets: "Secrets"


def registry_options(function: Callable[..., T]) -> Callable[..., T]:
    """Adds ``--auth``, ``--ca`` and ``--plain-http``; the function gets them as one, ``access``."""

    @functools.wraps(function)
    def with_access(*, auth: Path | None, ca: Path | None, plain_http: tuple[str, ...], **others: Any) -> T:
        return function(**others, access=Access(auth=auth, ca=ca, plain=plain_http))

    file = click.Path(path_type=Path, dir_okay=False, exists=True)
    with_access = click.option(
        "--plain-http",
        metavar="[HOST]",
        multiple=True,
        is_flag=False,
        flag_value="*",
        help="Ask this registry, or all, over plain HTTP instead of TLS.",
    )(with_access)
    ca_option = click.option("--ca", metavar="FILE", type=file, help="Authority that signed a registry, PEM.")
    return click.option(
        "--auth",
        metavar="FILE",
        type=file,
        help="Credentials as docker and skopeo keep them; theirs if left out.",
    )(ca_option(with_access))


@asynccontextmanager
async def registries(
    access: Access, secrets: "PullSecrets | None" = None, *, lab: "Resolver | None" = None
) -> AsyncIterator[Registries]:
    """A resolver and its client; with the cluster's pull secrets beside the file's credentials.

    In a lab, ``lab`` resolves instead, from simulated registries.

    Raises:
        CommandError: the authority's file has no certificates.
    """
    from tessera.clock import SystemClock
    from tessera.driver.images.resolver import RegistryResolver
    from tessera.driver.registry.authorities import AuthoritiesError, read_authorities
    from tessera.driver.registry.client import RegistryClient
    from tessera.driver.registry.keyring import Keyring
    from tessera.driver.registry.wire import RegistryHttp, Trust

    clock, keyring = SystemClock(), access.keyring()
    try:
        authorities = read_authorities(access.ca) if access.ca else ""
    except AuthoritiesError as error:
        raise CommandError(f"error: --ca: {error}") from error
    wire = RegistryHttp(Trust(authorities=authorities, plain=access.plain))

    async def both(names: tuple[str, ...]) -> Keyring:
        return (await secrets(names) if secrets else Keyring()) + keyring

    client = RegistryClient(wire, clock)
    resolver = RegistryResolver(clock, client=client, secrets=both, rng=random.Random())
    try:
        yield Registries(client, lab or resolver, keyring, both)
    finally:
        await resolver.close()


#: Where NVIDIA publishes drivers, and under which name.
REPOSITORY, IMAGE = "nvcr.io/nvidia", "driver"

image_option = click.option("--image", default=IMAGE, show_default=True, help="As in the ClusterPolicy.")
version_option = click.option(
    "--version", "driver", metavar="NAME", default="", help="Driver version or branch: 525.125.06, 525."
)
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to answer."
)
