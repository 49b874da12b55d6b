"""What a user with the rights of one namespace may see, and which role is missing otherwise.

The direct way reads the agents' pages and the objects of the whole cluster. A tenant has no right to those. The API
``view.tessera.dev`` tells tenants of the cluster's cards, with the names that they may see.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.cli.base.connection import CommandError

if TYPE_CHECKING:
    from tessera.dashboard.view.objects import Explanation, Map, Usage, WaitingPods
    from tessera.kube.client.client import Client
    from tessera.kube.client.errors import ApiError
    from tessera.kube.resources.meta import Resource

T = TypeVar("T", "Usage", "Map", "Explanation", "WaitingPods")

#: Begins the alias of a name that the user may not see.
HIDDEN = "~"
#: What a user reads who sees aliases.
HIDDEN_NAMES = "names that begin with ~ stand for nodes and pods whose names you may not see"

_ROLE = "tessera-view"


class NeededRole(NamedTuple):
    """A role that the direct way takes.

    Attributes:
        command: the role with the command that binds it; ``{subject}`` stands for the user.
        rights: rights that no smaller role gives, as ``resourceAttributes`` of a SelfSubjectAccessReview.
    """

    command: str
    rights: Sequence[Mapping[str, str]]


#: Reads the agents' pages.
READ_PAGES = NeededRole(
    "the ClusterRole tessera-usage-reader in tessera-system: kubectl create rolebinding gpu-readers"
    " --clusterrole=tessera-usage-reader {subject} -n tessera-system",
    (
        {"verb": "get", "resource": "pods", "subresource": "proxy", "namespace": SYSTEM_NAMESPACE},
        {
            "verb": "create",
            "resource": "serviceaccounts",
            "subresource": "token",
            "name": "tessera-reader",
            "namespace": SYSTEM_NAMESPACE,
        },
    ),
)
#: Reads the objects of the whole cluster.
READ_CLUSTER = NeededRole(
    "the ClusterRole tessera-cluster-view everywhere: kubectl create clusterrolebinding gpu-cluster-viewers"
    " --clusterrole=tessera-cluster-view {subject}",
    ({"verb": "list", "resource": "nodes"},),
)


async def read_as_tenant(
    client: "Client", resource: "Resource[T]", namespace: str, refused: "ApiError", *needed: NeededRole
) -> T:
    """Reads an object of the API for tenants.

    Args:
        client: the user's client.
        resource: its kind.
        namespace: the namespace in which the user may have the right.
        refused: the refusal of the direct way, for the error.
        needed: the roles that the direct way takes: :data:`READ_PAGES`, :data:`READ_CLUSTER`.

    Raises:
        CommandError: the user may not read it, or nobody can; it names the role and the command.
    """
    from tessera.dashboard.view.objects import read_view
    from tessera.kube.client.errors import ApiError

    try:
        return await read_view(client, resource, namespace)
    except ApiError as error:
        raise CommandError(*await missing_rights(client, namespace, refused, error, *needed)) from error


async def missing_rights(
    client: "Client", namespace: str, refused: "ApiError", view: "ApiError", *needed: NeededRole
) -> list[str]:
    """The lines of an error: the refusal, and which role to bind.

    Args:
        client: the user's client.
        namespace: the user's namespace.
        refused: the refusal of the direct way.
        view: why the API for tenants gave no answer.
        needed: the roles that the direct way takes; those whose rights the user has are left out.
    """
    from tessera.kube.client.errors import Forbidden, NotFound

    subject = await _subject(client)
    lines = [" ".join(str(refused).split())]
    if isinstance(view, Forbidden):
        lines.append(
            f"To see all cards, and the names of pods in {namespace}, you need the ClusterRole {_ROLE} there (or view):"
            f" kubectl create rolebinding gpu-viewers --clusterrole={_ROLE} {subject} -n {shlex.quote(namespace)}"
        )
    elif isinstance(view, NotFound):
        lines.append("The API for users with the rights of one namespace is not installed: tessera install --dashboard")
    else:
        lines.append(
            f"The API for users with the rights of one namespace does not answer ({' '.join(str(view).split())}): see"
            " kubectl get apiservice v1alpha1.view.tessera.dev -o yaml"
        )
    missing = [role for role in needed if not all([await _has(client, right) for right in role.rights])]
    return [*lines, *(f"To see all names, you need {each.command.format(subject=subject)}" for each in missing)]


async def _has(client: "Client", right: Mapping[str, str]) -> bool:
    """True if the API server says that this user has a right; False also if it does not say."""
    import json

    from tessera.kube.client.errors import ApiError

    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": dict(right)},
    }
    try:
        answer = await client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
        return json.loads(answer.body)["status"]["allowed"] is True
    except (ApiError, OSError, ValueError, LookupError, TypeError):
        return False


async def describe_role(client: "Client | None", needed: NeededRole) -> str:
    """A role, and the command that binds it for this user; ``NAME`` stands for a user who is not known.

    Args:
        client: the user's client; None if there is none.
        needed: :data:`READ_PAGES` or :data:`READ_CLUSTER`.
    """
    return needed.command.format(subject="--user=NAME" if client is None else await _subject(client))


async def _subject(client: "Client") -> str:
    """The option of kubectl that names this user, as a word of a shell: ``--user=jane``."""
    from tessera.kube.client.errors import ApiError
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
