"""A cluster's address, who we are there, and whom we trust; inside a pod, by its service account.

TLS is as Go's clients do it: what is trusted, and what a certificate that is not trusted means in plain words.
"""

import os
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.clock import Clock
from tessera.kube.credentials import NOBODY, Credential, Credentials, TokenFile
from tessera.kube.requests import Request
from tessera.text import UserError

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


class TlsContexts:
    """The context for the present client certificate of one configuration; a new one only when it has changed."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._context: ssl.SSLContext | None = None
        self._made_for: tuple[bytes, bytes] | None = None

    def of(self, credential: Credential) -> ssl.SSLContext | None:
        """The context for this credential; None for a server without TLS."""
        if self._config.server.startswith("http://"):
            return None
        wanted = (credential.certificate, credential.key)
        if self._context is None or self._made_for != wanted:
            self._context, self._made_for = tls_context(self._config, credential), wanted
        return self._context


def client_context(authorities: str | None = None) -> ssl.SSLContext:
    """Returns a context that verifies certificates as Go does, since clusters make theirs for programs in Go.

    An authority that is named is trusted even if another one signed it. RFC 5280's optional strictness, which
    Python 3.13 turns on, is off: authorities of many clusters lack the extensions that it requires.

    Args:
        authorities: their certificates, PEM; None for those of the system.

    Raises:
        ssl.SSLError: a certificate cannot be read.
        ValueError: there is none.
    """
    if authorities is not None and not authorities.strip():
        raise ValueError("no certificate is given")
    context = ssl.create_default_context(cadata=authorities)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def tls_context(config: ClusterConfig, credential: Credential) -> ssl.SSLContext:
    """A client context that trusts the cluster's authority and carries the credential's certificate.

    See :func:`client_context`.
    """
    try:
        context = client_context(config.ca.decode() or None)
    except (ssl.SSLError, ValueError) as error:
        raise ConnectionError("certificate-authority-data of the kubeconfig holds no certificate in PEM") from error
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credential.certificate:
        _load_certificate(context, credential)
    return context


def _load_certificate(context: ssl.SSLContext, credential: Credential) -> None:
    """Loads it from a file, as Python's OpenSSL needs; only this user can read the file, and it is removed at once."""
    handle, path = tempfile.mkstemp(prefix="tessera-", suffix=".pem")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(credential.certificate + b"\n" + credential.key)
        context.load_cert_chain(path)
    finally:
        Path(path).unlink()


#: Meaning of OpenSSL's codes for a certificate that it does not trust (``X509_V_ERR_*``), and the next step.
_CERTIFICATE_ERRORS: Mapping[int, str] = {
    7: "is signed by an unknown authority; certificate-authority-data of the kubeconfig must be the server's",
    9: "is not valid yet; compare the clocks of this machine and the server",
    10: "has expired; whoever runs the server has to renew it (kubeadm certs renew, or the provider)",
    18: "is signed by itself and not known here; certificate-authority-data of the kubeconfig must be the server's",
    19: "is signed by an unknown authority; certificate-authority-data of the kubeconfig must be the server's",
    20: "is signed by an unknown authority; certificate-authority-data of the kubeconfig must be the server's",
    21: "is signed by an unknown authority; certificate-authority-data of the kubeconfig must be the server's",
    62: "is not for this host name; use the name that it has, or set tls-server-name in the kubeconfig",
    64: "is not for this address; use the name that it has, or set tls-server-name in the kubeconfig",
}


def describe_certificate_error(error: Exception) -> str:
    """Describes a certificate that is not trusted."""
    code = error.verify_code if isinstance(error, ssl.SSLCertVerificationError) else 0
    return f"its certificate {_CERTIFICATE_ERRORS[code]} ({error})" if code in _CERTIFICATE_ERRORS else str(error)
