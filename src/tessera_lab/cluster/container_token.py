"""The service account token of a container that runs for real: requested and renewed as kubelet does.

Kubelet renews a projected token once 80 % of its lifetime are over; the lab omits the file that a container reads it
from. It requests a new token at once if the server refuses one.
"""

import asyncio

import msgspec

from tessera.clock import Clock, parse_rfc3339
from tessera.kube.client.client import Client
from tessera.kube.resources import SERVICE_ACCOUNTS
from tessera.kube.transport.credentials import Credential
from tessera_lab.kubelet.context import ContainerContext

#: Part of a token's life after which kubelet renews it.
RENEW_AT = 0.8


class ContainerToken:
    """The credentials of one container.

    Args:
        kubelet: the client that requests tokens.
        context: the container; its tokens are bound to its pod.
        clock: says when to renew.
    """

    def __init__(self, kubelet: Client, context: ContainerContext, clock: Clock) -> None:
        self._kubelet = kubelet
        self._context = context
        self._clock = clock
        self._credential: Credential | None = None
        self._renew = 0.0
        self._asking = asyncio.Lock()

    async def current(self) -> Credential:
        """Returns the token, renewed if it is due.

        Raises:
            ApiError: the server issues none, for example since the pod is gone.
        """
        async with self._asking:
            if self._credential is None or self._clock.now() >= self._renew:
                self._credential = await self._ask()
            return self._credential

    def reject(self, credential: Credential) -> bool:
        """Drops a token that the server refused, so that the next call requests another."""
        if credential is self._credential:
            self._credential = None
        return True

    async def _ask(self) -> Credential:
        context, asked = self._context, self._clock.now()
        bound = {"kind": "Pod", "apiVersion": "v1", "name": context.pod.name, "uid": context.pod.uid}
        answer = await self._kubelet.request(
            "POST",
            SERVICE_ACCOUNTS.path(context.pod.namespace, context.pod.service_account, "token"),
            body={
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"boundObjectRef": bound},
            },
        )
        status = msgspec.json.decode(answer.body)["status"]
        self._renew = asked + RENEW_AT * (parse_rfc3339(status["expirationTimestamp"]) - asked)
        return Credential(authorization=f"Bearer {status['token']}")
