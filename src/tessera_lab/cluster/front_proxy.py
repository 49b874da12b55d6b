"""The API server's front proxy: its certificate, the ConfigMap that announces it, and its calls of Services.

The page of a pod that the API server passes on is read whole, or not at all.
"""

import base64
import ssl
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from tessera.clock import Clock
from tessera.kube.cluster_config import client_context
from tessera.kube.requests import Request, Response
from tessera_lab.apiserver.admission.webhooks.callers import Resolver
from tessera_lab.apiserver.authz.certificates import CertificateAuthority, CertificatePair
from tessera_lab.apiserver.handlers.aggregation import Target
from tessera_lab.apiserver.interfaces import GroupResource, Obj
from tessera_lab.apiserver.request.server_state import ServerState
from tessera_lab.limits import POD_PAGE

#: Common name of the certificate.
CLIENT = "front-proxy-client"
_NAME, _NAMESPACE = "extension-apiserver-authentication", "kube-system"
_SECONDS = 30.0


async def read_page(answer: aiohttp.ClientResponse) -> bytes:
    """The body of an answer, to its end.

    A single read of aiohttp's stream gives only what has arrived.

    Raises:
        ConnectionError: it has more bytes than ``POD_PAGE``.
        aiohttp.ClientError: the connection broke before the end.
    """
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > POD_PAGE:
            raise ConnectionError(f"the page of {answer.url} is too long: {POD_PAGE} are allowed; ask for less of it")
    return bytes(body)


class FrontProxy:
    """Calls Services over TLS, as kube-apiserver does.

    Args:
        resolve: finds a ready pod of a Service.
        clock: for the validity of certificates.
    """

    def __init__(self, resolve: Resolver, clock: Clock) -> None:
        self._resolve = resolve
        self._authority = CertificateAuthority(clock.now(), "front-proxy-ca")
        self._client = self.issue(CLIENT)
        self._contexts: dict[tuple[str, bool], ssl.SSLContext] = {}
        self._session: aiohttp.ClientSession | None = None

    def issue(self, common_name: str) -> CertificatePair:
        """A client certificate of the proxy's authority."""
        return self._authority.issue_client_certificate(common_name)

    async def __call__(self, target: Target, request: Request) -> Response:
        """See :class:`~tessera_lab.apiserver.handlers.aggregation.ServiceCaller`."""
        found = self._resolve(target.namespace, target.name, target.port)
        if found is None:
            raise LookupError(f"service {target.namespace}/{target.name}")
        host, port = found
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS))
        headers = [(key, each) for key, value in request.headers.items() for each in value.split("\n")]
        try:
            async with self._session.request(
                request.method,
                f"https://{host}:{port}{request.path}",
                params=list(request.query),
                data=request.body or None,
                headers=headers,
                ssl=self._context(target),
                server_hostname=f"{target.name}.{target.namespace}.svc",
                allow_redirects=False,
            ) as answer:
                body = await read_page(answer)
                kind = answer.headers.get("content-type", "application/json")
                return Response(status=answer.status, headers={"content-type": kind}, body=body)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionError(str(error)) from error

    async def close(self) -> None:
        """Closes idle connections."""
        if self._session is not None:
            await self._session.close()

    def _context(self, target: Target) -> ssl.SSLContext:
        key = (target.bundle, target.insecure)
        if key not in self._contexts:
            self._contexts[key] = self._make_context(target)
        return self._contexts[key]

    def _make_context(self, target: Target) -> ssl.SSLContext:
        context = client_context()
        if target.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        elif target.bundle:
            try:
                context = client_context(base64.b64decode(target.bundle).decode())
            except (ValueError, ssl.SSLError) as error:
                raise ConnectionError(f"unable to load root certificates: {error}") from error
        with TemporaryDirectory() as folder:
            certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
            certificate.write_bytes(self._client.certificate)
            key.touch(mode=0o600)
            key.write_bytes(self._client.key)
            context.load_cert_chain(certificate, key)
        return context

    def announce(self, core: ServerState) -> None:
        """Stores the ConfigMap by which extension servers know the front proxy, and the Role to read it."""
        data = {
            "requestheader-client-ca-file": self._authority.certificate.decode(),
            "requestheader-allowed-names": f'["{CLIENT}"]',
            "requestheader-username-headers": '["X-Remote-User"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        }
        rule = {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [_NAME],
            "verbs": ["get", "list", "watch"],
        }
        _store(core, "", "configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "data": data}, _NAME)
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": [rule]}
        _store(core, "rbac.authorization.k8s.io", "roles", role, f"{_NAME}-reader")


def _store(core: ServerState, group: str, plural: str, obj: Obj, name: str) -> None:
    metadata = {"name": name, "namespace": _NAMESPACE, "uid": core.new_uid(), "creationTimestamp": core.timestamp()}
    core.store.put(GroupResource(group, plural), {**obj, "metadata": metadata}, None)
