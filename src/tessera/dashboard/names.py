"""The names by which visitors reach the page. Pure.

A browser sends the name that its user typed as the header Host, and the page that sent a request as Origin. Another
site that the visitor has open shows in Origin. A site whose name was pointed to the page's address (DNS rebinding)
shows in Host.
"""

from collections.abc import Collection, Iterator
from ipaddress import IPv4Address
from urllib.parse import urlsplit

#: Names of the visitor's own machine.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_USUAL_PORTS = {"http": 80, "https": 443}


class PageNames:
    """Names that a request may carry.

    Args:
        origins: origins of the page: ``https://gpu.example.com``.
        loopback: True if the visitor's own machine under any port is one of them, as with ``kubectl port-forward``, and
            with a lab, whose pods have addresses of that machine.

    Raises:
        ValueError: one is no origin.
    """

    def __init__(self, origins: Collection[str] = (), *, loopback: bool = False) -> None:
        self._origins = {host: text.rstrip("/") for text in origins for host in _hosts(text)}
        self._loopback = loopback

    def admit(self, host: str, origin: str | None) -> bool:
        """Whether a request with these headers may be answered; ``origin`` is None if it has none."""
        host = host.lower()
        own = {self._origins[host]} if host in self._origins else set()
        if not own and self._loopback and _is_loopback(_name_of(host)):
            own = {f"http://{host}", f"https://{host}"}
        return bool(own) and (origin is None or origin in own)


def _hosts(origin: str) -> Iterator[str]:
    """The values of the header Host for an origin: browsers leave the usual port out."""
    parts = urlsplit(origin)
    path = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if parts.scheme not in _USUAL_PORTS or not parts.hostname or path:
        raise ValueError(f'"{origin}" is no origin of a page; write a scheme and a name, as in https://gpu.example.com')
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if parts.port in {None, _USUAL_PORTS[parts.scheme]}:
        yield name
    yield f"{name}:{parts.port or _USUAL_PORTS[parts.scheme]}"


def _is_loopback(name: str) -> bool:
    """Whether this names the visitor's own machine; no other name can be pointed to an address that is written out."""
    if name in LOOPBACK:
        return True
    try:
        return IPv4Address(name).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    name, separator, port = host.rpartition(":")
    return name if separator and port.isascii() and port.isdecimal() else host
