"""What has to be known of a lab before anything is said of it: its registries are inside it, and its time may leap.

A lab's kubelets say so by the name of their container runtime, and an API server whose time leaps by its version.
"""

from collections.abc import Iterable

import msgspec

from tessera.api.names import SIMULATED_RUNTIME
from tessera.cli.console import say
from tessera.kube.client import Client
from tessera.kube.errors import ApiError
from tessera.kube.resources import Node

_REGISTRIES = (
    "note: this cluster is a lab. Its registries are simulated, and only its controller reaches them: what they said"
    " stands in: tessera driver status -v. This command asks the real ones; name one of yours in the policy, or leave"
    " --cluster out."
)


class _Version(msgspec.Struct, frozen=True):
    git_version: str = msgspec.field(name="gitVersion", default="")


def simulated(nodes: Iterable[Node]) -> bool:
    """Whether these are nodes of a lab."""
    return any(node.status.node_info.container_runtime_version.startswith(SIMULATED_RUNTIME) for node in nodes)


def say_where_registries_are(nodes: Iterable[Node]) -> None:
    """Says on standard error that a lab's registries are not those that are asked here."""
    if simulated(nodes):
        say(_REGISTRIES, err=True)


async def leaps(client: Client, nodes: Iterable[Node]) -> bool:
    """Whether the cluster's time leaps, so that moments in it say nothing by this machine's clock.

    Only a cluster with simulated nodes is asked. One that does not tell its version is taken for one that does not.
    """
    if not simulated(nodes):
        return False
    from tessera.lab.apiserver.discovery import LEAPING_VERSION

    try:
        answer = await client.request("GET", "/version")
        return msgspec.json.decode(answer.body, type=_Version).git_version == LEAPING_VERSION
    except (ApiError, msgspec.DecodeError):
        return False
