"""How commands treat a cluster that is a lab: its registries are inside it, and its time may leap over waits.

A lab's kubelets name a container runtime of their own, and an API server whose time leaps has a version of its own.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tessera.api.names import SIMULATED_RUNTIME, VIRTUAL_TIME_SUFFIX
from tessera.cli.base.command_group import extension
from tessera.cli.base.console import say
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import Node

if TYPE_CHECKING:
    from tessera.driver.resolution import Resolver

_REGISTRIES = (
    "note: this cluster is a lab. Its registries are simulated, and nothing can be copied from them; tessera driver"
    " status -v shows their answers. This command asks the real registries; name one of yours in the policy, or leave"
    " --cluster out."
)
_ASKED = "note: this cluster is a lab: its simulated registries are asked, and no real one."


class _Version(msgspec.Struct, frozen=True):
    git_version: str = msgspec.field(name="gitVersion", default="")


def is_lab(nodes: Iterable[Node]) -> bool:
    """Whether these are nodes of a lab."""
    return any(node.status.node_info.container_runtime_version.startswith(SIMULATED_RUNTIME) for node in nodes)


def lab_registries(kubeconfig: Path | None, context: str | None) -> "Resolver | None":
    """The simulated registries of the lab that a kubeconfig leads to.

    Returns:
        None if it leads elsewhere, the lab has none, or the package ``tessera-lab`` is not installed here.
    """
    find = extension("registries")
    found: Resolver | None = None if find is None else find(kubeconfig, context)
    return found


def say_where_registries_are(nodes: Iterable[Node], lab: "Resolver | None") -> None:
    """Says on standard error which registries are asked, where the cluster is a lab."""
    if is_lab(nodes):
        say(_REGISTRIES if lab is None else _ASKED, err=True)


async def time_leaps(client: Client, nodes: Iterable[Node]) -> bool:
    """Whether the cluster's time leaps, so that its times cannot be compared with this machine's clock.

    Only a cluster with simulated nodes is asked. A cluster that does not tell its version counts as one whose time
    does not leap.
    """
    if not is_lab(nodes):
        return False
    try:
        answer = await client.request("GET", "/version")
        return msgspec.json.decode(answer.body, type=_Version).git_version.endswith(VIRTUAL_TIME_SUFFIX)
    except (ApiError, msgspec.DecodeError):
        return False
