"""What a user with the rights of one namespace may see, and which role is missing otherwise.

The direct way reads the agents' pages and the objects of the whole cluster. A tenant has no right to those. The API
``view.tessera.dev`` tells tenants of the cluster's cards, with the names that they may see.
"""

import shlex
from typing import TYPE_CHECKING, Any, TypeVar

from tessera.cli.base.connection import CommandError

if TYPE_CHECKING:
    from tessera.dashboard.view.cluster_map import Map
    from tessera.dashboard.view.explanations import Explanation
    from tessera.dashboard.view.objects import GpuHours, Usage, WaitingPods
    from tessera.kube.client import Client
    from tessera.kube.errors import ApiError
    from tessera.kube.resources.meta import Resource

T = TypeVar("T", "Usage", "Map", "Explanation", "WaitingPods", "GpuHours")

#: Begins the alias of a name that the user may not see.
HIDDEN = "~"
#: What a user reads who sees aliases.
HIDDEN_NAMES = "names that begin with ~ stand for nodes on which you have no pods; you may not see their names"

_ROLE = "tessera-view"


#: Reads the agents' pages: the role, with the command that binds it; ``{subject}`` stands for the user.
READ_PAGES = (
    "the ClusterRole tessera-usage-reader in tessera-system: kubectl create rolebinding gpu-readers"
    " --clusterrole=tessera-usage-reader {subject} -n tessera-system"
)
#: Reads the objects of the whole cluster.
READ_CLUSTER = (
    "the ClusterRole tessera-cluster-view everywhere: kubectl create clusterrolebinding gpu-cluster-viewers"
    " --clusterrole=tessera-cluster-view {subject}"
)


async def read_as_tenant(client: "Client", resource: "Resource[T]", namespace: str, name: str = "cluster") -> T:
    """Reads an object of the API for tenants.

    Args:
        client: the user's client.
        resource: its kind.
        namespace: the namespace in which the user may have the right.
        name: its name.

    Raises:
        CommandError: the user may not read it, or nobody can; it names the administrator's command.
        NotFound: the API is there, and has no such object.
    """
    from tessera.dashboard.view.explanations import read_view
    from tessera.kube.errors import ApiError, NotFound

    try:
        return await read_view(client, resource, namespace, name)
    except ApiError as error:
        if isinstance(error, NotFound) and f'"{name}"' in error.status.message:
            raise
        raise CommandError(f"error: {await missing_right(client, namespace, error)}") from error


async def missing_right(client: "Client", namespace: str, view: "ApiError") -> str:
    """Why the API for tenants gave no answer, and what an administrator does about it, in one line.

    Args:
        client: the user's client.
        namespace: the user's namespace.
        view: the API's refusal.
    """
    from tessera.kube.errors import Forbidden, NotFound

    if isinstance(view, NotFound) or (isinstance(view, Forbidden) and await _lacks_api(client)):
        return (
            "this cluster has no Tessera, or one that shows cards to administrators only; an administrator adds"
            " Tessera's API for tenants: tessera install --reuse --dashboard"
        )
    if isinstance(view, Forbidden):
        role = f"--clusterrole={_ROLE} {await _subject(client)} -n {shlex.quote(namespace)}"
        return (
            f"you may not see the cards of the cluster from namespace {namespace}; an administrator allows it:"
            f" kubectl create rolebinding gpu-viewers {role}"
        )
    return (
        f"Tessera's API for tenants does not answer ({' '.join(str(view).split())}); an administrator sees why: kubectl"
        " get apiservice v1alpha1.view.tessera.dev -o yaml"
    )


async def _lacks_api(client: "Client") -> bool:
    """True if discovery, which is for every user, lists no such API: RBAC refuses also what does not exist."""
    from tessera.dashboard.view.explanations import GROUP
    from tessera.kube.errors import ApiError, NotFound

    try:
        await client.request("GET", f"/apis/{GROUP}")
    except (ApiError, OSError) as error:
        return isinstance(error, NotFound)
    return False


async def describe_role(client: "Client | None", needed: str) -> str:
    """A role, and the command that binds it for this user; ``NAME`` stands for a user who is not known.

    Args:
        client: the user's client; None if there is none.
        needed: :data:`READ_PAGES` or :data:`READ_CLUSTER`.
    """
    return needed.format(subject="--user=NAME" if client is None else await _subject(client))


async def _subject(client: "Client") -> str:
    """The option of kubectl that names this user, as a word of a shell: ``--user=jane``."""
    from tessera.kube.errors import ApiError
    from tessera.kube.resources import SELF_SUBJECT_REVIEWS

    try:
        made: dict[str, Any] = await client.create(SELF_SUBJECT_REVIEWS, {})
    except (ApiError, OSError):
        return "--user=NAME"
    name = str((made.get("status") or {}).get("userInfo", {}).get("username", "NAME"))
    match name.split(":"):
        case ["system", "serviceaccount", namespace, account]:
            return shlex.quote(f"--serviceaccount={namespace}:{account}")
    return shlex.quote(f"--user={name}")
