"""Recognizes a simulated cluster (a lab), finds its registries, and tells if it is on virtual time.

A lab's kubelets report the container runtime ``simulated://``, and an API server on virtual time has its own version.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tessera.api.names import SIMULATED_RUNTIME, VIRTUAL_TIME_SUFFIX
from tessera.cli.base.command_group import extension
from tessera.cli.base.console import say
from tessera.kube.client import Client
from tessera.kube.errors import ApiError
from tessera.kube.resources import Node

if TYPE_CHECKING:
    from tessera.driver.images import Resolver

_REGISTRIES = (
    "note: this cluster is a lab. Its registries are simulated, and nothing can be copied from them; tessera driver"
    " status -v shows their answers. This command asks real registries: name one of yours in the policy, or leave"
    " --cluster out."
)
_SIMULATED = "note: this cluster is a lab; this command asks its simulated registries, not real ones."


class _Version(msgspec.Struct, frozen=True):
    git_version: str = msgspec.field(name="gitVersion", default="")


def is_lab(nodes: Iterable[Node]) -> bool:
    """Returns True if one of the nodes belongs to a lab."""
    return any(node.status.node_info.container_runtime_version.startswith(SIMULATED_RUNTIME) for node in nodes)


def lab_registries(kubeconfig: Path | None, context: str | None) -> "Resolver | None":
    """The simulated registries of the lab whose API server a kubeconfig names.

    Returns:
        None if the server is not a lab's, the lab has no registries, or the lab's package is not installed.
    """
    find = extension("registries")
    found: Resolver | None = None if find is None else find(kubeconfig, context)
    return found


def print_registries_note(nodes: Iterable[Node], lab: "Resolver | None") -> None:
    """For a lab, prints on standard error if the command queries simulated registries or real ones."""
    if is_lab(nodes):
        say(_REGISTRIES if lab is None else _SIMULATED, err=True)


async def has_virtual_time(client: Client, nodes: Iterable[Node]) -> bool:
    """Returns True if the cluster is on virtual time, so that its times cannot be compared with this machine's clock.

    Queries the version of clusters with simulated nodes only. A cluster that does not report its version counts as one
    on real time.
    """
    return is_lab(nodes) and (await server_version(client)).endswith(VIRTUAL_TIME_SUFFIX)


async def server_version(client: Client) -> str:
    """The version of the API server, such as ``v1.33.1``; empty if it does not say so. A lab's has LAB_SUFFIX."""
    try:
        answer = await client.request("GET", "/version")
        return msgspec.json.decode(answer.body, type=_Version).git_version
    except (ApiError, msgspec.DecodeError):
        return ""
