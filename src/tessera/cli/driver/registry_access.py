"""A command's access to registries: credentials, certificate authorities, and registries without TLS."""

import functools
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from tessera.cli.base.connection import CommandError
from tessera.cli.base.grammar import output_option
from tessera.clock import SystemClock
from tessera.driver.images import Resolver
from tessera.driver.registry.client import RegistryClient
from tessera.driver.registry.credentials import (
    AuthoritiesError,
    Keyring,
    PullSecrets,
    default_docker_config,
    read_authorities,
    read_docker_config,
)
from tessera.driver.registry.resolver import RegistryResolver, Secrets
from tessera.driver.registry.wire import RegistryHttp, Trust

T = TypeVar("T")


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the options.

    Attributes:
        auth: a file of credentials; None for the file of docker or skopeo, if there is one.
        ca: a file of certificate authorities, in addition to the system's.
        plain: hosts to contact without TLS; ``*`` is all.
    """

    auth: Path | None = None
    ca: Path | None = None
    plain: tuple[str, ...] = ()

    def keyring(self) -> Keyring:
        """The credentials.

        Raises:
            CredentialsError: the file has no credentials.
        """
        path = self.auth or default_docker_config(os.environ)
        return read_docker_config(path) if path else Keyring()


class Registries(msgspec.Struct, frozen=True):
    """Access to registries.

    Attributes:
        client: sends every request to the registry.
        resolver: looks up images and caches the answers; with a lab, queries its simulated registries.
        keyring: credentials of this machine.
        secrets: credentials from the cluster's pull secrets, followed by those of this machine.
    """

    client: RegistryClient
    resolver: Resolver
    keyring: Keyring
    secrets: Secrets


def registry_options(function: Callable[..., T]) -> Callable[..., T]:
    """Adds ``--auth``, ``--registry-ca`` and ``--plain-http``; the function gets them as one :class:`Access`."""
    file = click.Path(path_type=Path, dir_okay=False, exists=True)

    @click.option(
        "--auth",
        metavar="FILE",
        type=file,
        help="Credentials in the format of docker and skopeo.  [default: their own file]",
    )
    @click.option(
        "--registry-ca",
        metavar="FILE",
        type=file,
        help="File (PEM) with certificate authorities of registries, in addition to the system's.",
    )
    @click.option(
        "--plain-http",
        metavar="[HOST]",
        multiple=True,
        is_flag=False,
        flag_value="*",
        help="Contact this registry, or all registries, without TLS; repeatable.",
    )
    @functools.wraps(function)
    def with_access(*, auth: Path | None, registry_ca: Path | None, plain_http: tuple[str, ...], **others: Any) -> T:
        return function(**others, access=Access(auth=auth, ca=registry_ca, plain=plain_http))

    return with_access


@asynccontextmanager
async def connect_registries(
    access: Access, secrets: PullSecrets | None = None, *, lab: Resolver | None = None
) -> AsyncIterator[Registries]:
    """Opens the access to registries.

    Args:
        access: values of the options.
        secrets: the cluster's pull secrets, used in addition to the file's credentials.
        lab: the resolver of a lab's simulated registries, used instead of real ones.

    Raises:
        CommandError: the file of authorities has no certificates.
    """
    clock, keyring = SystemClock(), access.keyring()
    try:
        authorities = read_authorities(access.ca) if access.ca else ""
    except AuthoritiesError as error:
        raise CommandError(f"error: --registry-ca: {error}") from error
    wire = RegistryHttp(Trust(authorities=authorities, plain=access.plain))

    async def both(names: tuple[str, ...]) -> Keyring:
        return (await secrets(names) if secrets else Keyring()) + keyring

    client = RegistryClient(wire, clock)
    resolver = RegistryResolver(clock, client=client, secrets=both, rng=random.Random())
    try:
        yield Registries(client, lab or resolver, keyring, both)
    finally:
        await resolver.close()


#: NVIDIA's repository of driver images, and their name.
REPOSITORY, IMAGE = "nvcr.io/nvidia", "driver"

image_option = click.option(
    "--image", default=IMAGE, show_default=True, help="Name of driver images, as in the ClusterPolicy."
)
version_option = click.option(
    "--version", "driver", metavar="NAME", default="", help="Driver version or branch: 525.125.06, 525."
)
table_option = output_option("table")
