"""What has to be known of a lab before anything is said of it: its registries are inside it, and its time may leap.

A lab's kubelets say so by the name of their container runtime, and an API server whose time leaps by its version.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tessera.api.names import SIMULATED_RUNTIME
from tessera.cli.console import say
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import Node

if TYPE_CHECKING:
    from tessera.driver.resolution import ImageQuery, Resolution

_REGISTRIES = (
    "note: this cluster is a lab. Its registries are simulated, and nothing can be copied from them: what they said"
    " stands in: tessera driver status -v. This command asks the real ones; name one of yours in the policy, or leave"
    " --cluster out."
)
_ASKED = "note: this cluster is a lab: its simulated registries are asked, and no real one."


class _Version(msgspec.Struct, frozen=True):
    git_version: str = msgspec.field(name="gitVersion", default="")


def simulated(nodes: Iterable[Node]) -> bool:
    """Whether these are nodes of a lab."""
    return any(node.status.node_info.container_runtime_version.startswith(SIMULATED_RUNTIME) for node in nodes)


class LabRegistries(msgspec.Struct, frozen=True):
    """The simulated registries of a lab, asked over its control socket. A :class:`.Resolver`.

    Attributes:
        folder: the lab's.
    """

    folder: Path

    async def resolve(self, query: "ImageQuery", *, fresh: bool = False) -> "Resolution":  # noqa: ARG002 - always fresh
        """See :meth:`.Resolver.resolve`."""
        from tessera.driver.resolution import Resolution
        from tessera_lab.daemon.control_socket import ask

        text = await asyncio.to_thread(ask, self.folder, "resolve", msgspec.json.encode(query).decode())
        return msgspec.json.decode(text, type=Resolution)


def lab_registries(kubeconfig: Path | None, context: str | None) -> LabRegistries | None:
    """The registries of the lab that a kubeconfig leads to; None if it leads elsewhere, or the lab has none.

    A lab is known by what stands in its own folder, not by what the cluster says of itself.
    """
    from tessera.clock import SystemClock
    from tessera.kube.transport.kubeconfig import load_config
    from tessera_lab.daemon.lab_folder import running

    path = None if kubeconfig is None else str(kubeconfig)
    server = load_config(clock=SystemClock(), kubeconfig=path, context=context).server
    for folder in _folders(kubeconfig):
        state = running(folder)
        if state is not None and state.registries and state.server == server:
            return LabRegistries(folder)
    return None


def _folders(kubeconfig: Path | None) -> Iterator[Path]:
    """Where the lab may be: beside its kubeconfig, or where labs are."""
    from tessera_lab.daemon.lab_folder import default_folder

    paths = [str(kubeconfig)] if kubeconfig else os.environ.get("KUBECONFIG", "").split(os.pathsep)
    yield from (Path(each).parent for each in paths if each)
    yield default_folder()


def say_where_registries_are(nodes: Iterable[Node], lab: LabRegistries | None) -> None:
    """Says on standard error which registries are asked, where the cluster is a lab."""
    if simulated(nodes):
        say(_REGISTRIES if lab is None else _ASKED, err=True)


async def leaps(client: Client, nodes: Iterable[Node]) -> bool:
    """Whether the cluster's time leaps, so that moments in it say nothing by this machine's clock.

    Only a cluster with simulated nodes is asked. One that does not tell its version is taken for one that does not.
    """
    if not simulated(nodes):
        return False
    from tessera_lab.apiserver.discovery.discovery import LEAPING_VERSION

    try:
        answer = await client.request("GET", "/version")
        return msgspec.json.decode(answer.body, type=_Version).git_version == LEAPING_VERSION
    except (ApiError, msgspec.DecodeError):
        return False
