"""Evicts pods through the API server, so that disruption budgets and grace periods are kept.

The pod's UID is a precondition: another pod of the same name is never evicted. One call sends one request; the caller
decides when to try again.
"""

import msgspec

from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Conflict, Forbidden, NotFound, TooManyRequests


class Evicted(msgspec.Struct, frozen=True):
    """The pod will end, within its grace period."""


class Blocked(msgspec.Struct, frozen=True):
    """The pod stays for now; ``text`` says why: a disruption budget, no right to evict, no answer."""

    text: str


class Gone(msgspec.Struct, frozen=True):
    """There is no such pod any longer."""


class Evictor:
    """Evicts pods.

    Args:
        client: the API server; its identity needs ``create`` on ``pods/eviction``.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def evict(self, namespace: str, name: str, uid: str) -> Evicted | Blocked | Gone:
        """Asks for one pod's eviction; never raises because of the server's answer or silence.

        Args:
            namespace: the pod's namespace.
            name: the pod's name.
            uid: the pod's UID; another pod of that name is left alone.
        """
        try:
            await self._client.evict(name, namespace, uid=uid)
        except (NotFound, Conflict):
            return Gone()
        except TooManyRequests as error:
            return Blocked(" ".join([error.message, *(cause.message for cause in error.causes)]))
        except Forbidden as error:
            return Blocked(f"no right to evict it: {error.message}")
        except (ApiError, ConnectionError, TimeoutError) as error:
            return Blocked(f"the API server did not evict it: {error}")
        return Evicted()
