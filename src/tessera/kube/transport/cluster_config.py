"""A cluster's address, and who we are there; inside a pod, by its service account."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.clock import Clock
from tessera.errors import UserError
from tessera.kube.transport.credentials import NOBODY, Credential, Credentials, TokenFile
from tessera.kube.transport.interface import Request

#: Seconds for a whole answer, unless the user says otherwise.
ANSWER_TIMEOUT = 60.0
#: Where kubelet puts a pod's identity.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ClusterConfigError(UserError):
    """The configuration cannot be used; the text names the file, the entry and the mistake."""


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster's address, our credentials there, and how to verify the server.

    Attributes:
        server: URL, with a path where the API is not at the root.
        credentials: our credentials.
        namespace: the default one.
        ca: certificates that the server's must be signed by, PEM; empty for the system's.
        verify: True if the server's certificate is checked.
        server_name: the name in the certificate, if it is not the URL's host.
        proxy: URL of an HTTP proxy, or empty.
        context: the kubeconfig context it came from, empty inside a pod.
        impersonated: as whom to ask: the user, then groups; empty for nobody else.
        timeout: seconds for a whole answer.
    """

    server: str
    credentials: Credentials
    namespace: str = "default"
    ca: bytes = b""
    verify: bool = True
    server_name: str = ""
    proxy: str = ""
    context: str = ""
    impersonated: Sequence[str] = ()
    timeout: float = ANSWER_TIMEOUT

    async def credential_of(self, request: Request) -> Credential:
        """The credential for a request; none of our own goes with the header ``authorization`` of another user.

        Raises:
            CredentialError: no credential is available.
        """
        return NOBODY if "authorization" in request.headers else await self.credentials.current()

    def own_headers(self, credential: Credential) -> list[tuple[str, str]]:
        """The headers of every request that say who asks."""
        if credential is NOBODY:
            return []
        proof = [("authorization", credential.authorization)] if credential.authorization else []
        names = ("impersonate-user", *("impersonate-group" for _ in self.impersonated[1:]))
        return [*proof, *zip(names, self.impersonated, strict=False)]


def in_cluster(
    *, clock: Clock, environment: Mapping[str, str] | None = None, service_account: Path = SERVICE_ACCOUNT
) -> ClusterConfig:
    """The identity of the pod that we run in; its token is read again every minute.

    Raises:
        ClusterConfigError: we are not in a pod, or it has no service account.
    """
    env = os.environ if environment is None else environment
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ClusterConfigError("not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    try:
        ca = (service_account / "ca.crt").read_bytes()
        namespace = (service_account / "namespace").read_text().strip()
    except OSError as error:
        raise ClusterConfigError(
            f"service account {service_account}: {error.strerror}; is automountServiceAccountToken off?"
        ) from error
    bracketed = f"[{host}]" if ":" in host else host
    return ClusterConfig(
        server=f"https://{bracketed}:{port}",
        credentials=TokenFile(service_account / "token", clock=clock),
        namespace=namespace or "default",
        ca=ca,
    )
