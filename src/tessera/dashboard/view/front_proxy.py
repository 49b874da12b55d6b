"""Who sent a request of an aggregated API: kube-apiserver's front proxy says it in headers, and proves itself by TLS.

kube-apiserver publishes the authority and the names of its client certificate, and the names of its headers, in the
ConfigMap ``extension-apiserver-authentication`` of ``kube-system`` (Kubernetes, "Configure the Aggregation Layer").

1. Only a connection with a certificate of that authority counts. The port asks for one in the handshake.
2. If the ConfigMap names common names, the certificate has one of them.
3. The headers of such a connection are believed. kube-apiserver has authenticated the user, and has decided by RBAC
   that the user may send this request.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
from multidict import CIMultiDictProxy

from tessera.access.reviewer import Person

#: Most names of certificates and headers of the API server's front proxy, each; the rest is not read. Kubeadm has one
#: of each.
PROXY_NAMES = 64

CONFIG_MAP, NAMESPACE = "extension-apiserver-authentication", "kube-system"


class NotProxiedError(Exception):
    """The request does not come from the front proxy, or names no user."""


class FrontProxy(msgspec.Struct, frozen=True, kw_only=True):
    """The front proxy of a cluster.

    Attributes:
        authority: certificates of the authority of its client certificate, PEM.
        names: common names that the certificate may have; empty for any.
        user_headers: headers with the user's name, the first that is there counts.
        group_headers: headers with a group each.
        extra_prefixes: beginnings of the names of headers with further facts.
    """

    authority: str
    names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ("X-Remote-User",)
    group_headers: tuple[str, ...] = ("X-Remote-Group",)
    extra_prefixes: tuple[str, ...] = ("X-Remote-Extra-",)

    def identify(self, headers: CIMultiDictProxy[str], certificate: Mapping[str, Any] | None) -> Person:
        """The user of a request.

        Args:
            headers: of the request.
            certificate: of the client, as Python's ``getpeercert`` has it; None without one.

        Raises:
            NotProxiedError: the connection is not the front proxy's, or no user is named.
        """
        if not certificate or (self.names and _common_name(certificate) not in self.names):
            raise NotProxiedError("only the API server's front proxy may ask here")
        user = next((headers[name] for name in self.user_headers if headers.get(name)), "")
        if not user:
            raise NotProxiedError("the front proxy names no user")
        groups = tuple(group for name in self.group_headers for group in headers.getall(name, []))
        return Person(user, groups=groups, extra=self._extra(headers))

    def _extra(self, headers: CIMultiDictProxy[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
        found: dict[str, list[str]] = {}
        for name, value in headers.items():
            for prefix in self.extra_prefixes:
                if name.lower().startswith(prefix.lower()):
                    found.setdefault(unquote(name[len(prefix) :].lower()), []).append(value)
        return tuple(sorted((key, tuple(values)) for key, values in found.items()))


def read_front_proxy(data: Mapping[str, str]) -> FrontProxy | None:
    """Reads the ConfigMap; None if the cluster has no front proxy, so that nobody can be believed."""
    authority = data.get("requestheader-client-ca-file", "")
    if not authority:
        return None
    usual = FrontProxy(authority=authority)
    return FrontProxy(
        authority=authority,
        names=_names(data, "requestheader-allowed-names", ()),
        user_headers=_names(data, "requestheader-username-headers", usual.user_headers),
        group_headers=_names(data, "requestheader-group-headers", usual.group_headers),
        extra_prefixes=_names(data, "requestheader-extra-headers-prefix", usual.extra_prefixes),
    )


def _names(data: Mapping[str, str], key: str, usual: Sequence[str]) -> tuple[str, ...]:
    """A list of names, which is JSON in the ConfigMap; one that cannot be read lets nobody in by a name."""
    if key not in data:
        return tuple(usual)
    try:
        return tuple(msgspec.json.decode(data[key], type=list[str])[:PROXY_NAMES])
    except msgspec.MsgspecError:
        return ("",)


def _common_name(certificate: Mapping[str, Any]) -> str | None:
    """The certificate's name; None if it has none, which is no name of any list."""
    pairs = (pair for part in certificate.get("subject", ()) for pair in part)
    return next((str(value) for key, value in pairs if key == "commonName" and value), None)
