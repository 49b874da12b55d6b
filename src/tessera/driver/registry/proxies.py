"""Which proxy a URL is fetched through, from the environment that everything else on the machine follows.

``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY``, in either case. ``NO_PROXY`` is read as Go's programs read it, since
clusters write it for those: domains with all below them, addresses, address ranges (``10.0.0.0/8``), ``*``, each with
a port or without; this machine itself is never reached through a proxy. ``urllib`` and aiohttp know no ranges.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def proxy_for(url: str, environment: Mapping[str, str]) -> str:
    """URL of the proxy; empty for none."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    proxy = _variable(environment, f"{parts.scheme}_proxy")
    if not proxy or _loopback(host) or _excepted(host, port, _variable(environment, "no_proxy")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environment: Mapping[str, str], name: str) -> str:
    return (environment.get(name.upper()) or environment.get(name) or "").strip()


def _excepted(host: str, port: int, exceptions: str) -> bool:
    return any(_matches(host, port, each.strip().lower()) for each in exceptions.split(",") if each.strip())


def _matches(host: str, port: int, exception: str) -> bool:
    if exception == "*":
        return True
    address = _address(host)
    try:
        if address is not None:
            return address in ipaddress.ip_network(exception.strip("[]"), strict=False)
    except ValueError:
        pass  # no address and no range: a name, perhaps with a port
    name, _, only = exception.rpartition(":") if exception.rpartition(":")[2].isdigit() else (exception, "", "")
    if only and int(only) != port:
        return False
    if address is not None:
        return _address(name.strip("[]")) == address
    name = name.removeprefix("*")
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
