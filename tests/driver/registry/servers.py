"""Servers for what a real registry does not do on request: tokens, pages of tags, faults, silence."""

import base64
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from aiohttp import web
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509 import load_pem_x509_certificate
from tests.kube.certificates import Authority

USER, PASSWORD = "puller", "open-sesame"
#: bcrypt of the password above, as htpasswd files have it.
HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuutXu9KzOt.1yBoZUeFWoT/914/JfszCO\n"

REFRESH = "a-refresh-token"
ISSUER, SERVICE = "the tests", "registry of the tests"


def docker_config(host: str, **login: str) -> bytes:
    """A .dockerconfigjson with one registry; for the user above unless told otherwise."""
    entry = login or {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}
    return json.dumps({"auths": {host: entry}}).encode()


@asynccontextmanager
async def serving(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], listening: socket.socket | None = None
) -> AsyncIterator[str]:
    """An HTTP server on a free port, or on a socket that listens already; yields its host with the port."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    sock = listening or listener()
    try:
        await web.SockSite(runner, sock).start()
        yield "{}:{}".format(*sock.getsockname())
    finally:
        await runner.cleanup()


def listener() -> socket.socket:
    """A socket that listens on a free port. Nobody answers on it yet."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


@contextmanager
def silent() -> Iterator[str]:
    """A host that takes connections and never answers."""
    with listener() as sock:
        yield "{}:{}".format(*sock.getsockname())


class TokenServer:
    """Signs tokens as docker-registry wants them: JWT, ES256, the certificate in the header.

    Args:
        folder: for the certificate that the registry trusts.
    """

    def __init__(self, folder: Path) -> None:
        self._listening = listener()
        self.url = "http://{}:{}/token".format(*self._listening.getsockname())
        pair = Authority().issue("tokens.test")
        self._key = serialization.load_pem_private_key(pair.key, password=None)
        self._certificate = load_pem_x509_certificate(pair.pem).public_bytes(serialization.Encoding.DER)
        bundle = folder / "tokens.pem"
        bundle.write_bytes(pair.pem)
        self.settings = {
            "auth": {"token": {"realm": self.url, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": str(bundle)}}
        }
        #: Requests since the test began: who asked, and for what.
        self.asked: list[Mapping[str, str]] = []
        #: Whether it gives tokens to whom does not say who it is.
        self.anonymous = False
        self.lifetime = 300

    def close(self) -> None:
        self._listening.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["TokenServer"]:
        self.asked.clear()
        async with serving(self._answer, self._listening.dup()):
            yield self

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.asked.append({"method": request.method, **dict(request.query), **form, **self._who(request)})
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        known = request.headers.get("authorization") == wanted or form.get("refresh_token") == REFRESH
        if not known and (not self.anonymous or "authorization" in request.headers):
            return web.json_response({"errors": [{"code": "UNAUTHORIZED"}]}, status=401)
        kind, name, actions = (form.get("scope") or request.query["scope"]).split(":")
        access = [{"type": kind, "name": name, "actions": actions.split(",")}]
        return web.json_response({"token": self._signed(access), "expires_in": self.lifetime})

    def _who(self, request: web.Request) -> Mapping[str, str]:
        return {"authorization": request.headers["authorization"]} if "authorization" in request.headers else {}

    def _signed(self, access: object) -> str:
        header = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(self._certificate).decode()]}
        claims = {"iss": ISSUER, "sub": USER, "aud": SERVICE, "exp": 2**32, "nbf": 0, "iat": 0, "access": access}
        text = ".".join(_encoded(json.dumps(each).encode()) for each in (header, claims))
        assert isinstance(self._key, ec.EllipticCurvePrivateKey)
        r, s = decode_dss_signature(self._key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{_encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
