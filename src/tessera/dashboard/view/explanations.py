"""The explanations of the API ``view.tessera.dev/v1alpha1``, and how a command reads an object of that API.

They are apart from the other objects so that ``tessera why`` loads nothing else: its answer is one request.
"""

from typing import TypeVar

from tessera.explain.explanation import ExplanationReport
from tessera.kube.client import Client
from tessera.kube.resources.meta import ObjectMeta, Resource, Wire

GROUP, VERSION = "view.tessera.dev", "v1alpha1"
#: Name of the only object of all kinds but ``explanations``.
CLUSTER = "cluster"


class Explanation(Wire, frozen=True, kw_only=True):
    """Why a pod does not run, as ``tessera why`` says it; its name is the pod's.

    Attributes:
        metadata: the pod's namespace and name.
        report: the explanation.
        complete: True if nothing that the reader could read directly would add to it.
    """

    metadata: ObjectMeta = ObjectMeta()
    report: ExplanationReport
    complete: bool = False


EXPLANATIONS = Resource(GROUP, VERSION, "explanations", "Explanation", True, Explanation)

T = TypeVar("T", bound=Wire)


async def read_view(client: Client, resource: Resource[T], namespace: str, name: str = CLUSTER) -> T:
    """Reads an object with the rights that the user has in a namespace.

    Raises:
        ApiError: the user lacks the right, the API is not installed, or it does not answer.
    """
    return await client.get(resource, name, namespace)
