"""OpenShift's cluster-wide proxy in driver containers, which download packages and sources.

As in gpu-operator v26.7.0, the container gets the addresses as variables in both spellings. If the proxy has its own
certificate, the container's bundle is replaced by the one that OpenShift writes into each ConfigMap with a given label.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

Json = dict[str, Any]

#: Name of the one proxy of a cluster, and of the ConfigMap with its certificates.
CLUSTER_PROXY = "cluster"
TRUSTED_CA = "gpu-operator-trusted-ca"
_BUNDLE, _FILE, _FOLDER = "ca-bundle.crt", "tls-ca-bundle.pem", "/etc/pki/ca-trust/extracted/pem"


class Proxy(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's proxy: its addresses by variable name, and whether it has its own certificates."""

    variables: Mapping[str, str] = {}
    trusted_ca: bool = False

    def environment(self) -> list[Json]:
        """Variables of the driver container."""
        return [
            {"name": spelled, "value": text}
            for name, text in self.variables.items()
            for spelled in (name, name.lower())
        ]

    def volumes(self) -> list[Json]:
        """Volumes of the driver pod."""
        source = {"name": TRUSTED_CA, "items": [{"key": _BUNDLE, "path": _FILE}]}
        return [{"name": TRUSTED_CA, "configMap": source}] if self.trusted_ca else []

    def mounts(self) -> list[Json]:
        """Volume mounts of the driver container."""
        return [{"name": TRUSTED_CA, "mountPath": _FOLDER, "readOnly": True}] if self.trusted_ca else []


#: The value for a cluster without a proxy.
NO_PROXY = Proxy()


def read_proxy(obj: Mapping[str, Any]) -> Proxy:
    """Reads the object ``proxies.config.openshift.io``; values that are not text are left out.

    The list of hosts without proxy is taken from the status, since that includes the cluster's own networks.
    """
    spec, status = _part(obj, "spec"), _part(obj, "status")
    found = {
        "HTTP_PROXY": spec.get("httpProxy"),
        "HTTPS_PROXY": spec.get("httpsProxy"),
        "NO_PROXY": status.get("noProxy") or spec.get("noProxy"),
    }
    texts = {name: text for name, text in found.items() if isinstance(text, str) and text}
    return Proxy(variables=texts, trusted_ca=bool(_part(spec, "trustedCA").get("name")))


def trusted_ca() -> Json:
    """The ConfigMap into which OpenShift writes the certificate bundle."""
    labels = {"config.openshift.io/inject-trusted-cabundle": "true", "app.kubernetes.io/part-of": "tessera"}
    return {"metadata": {"name": TRUSTED_CA, "labels": labels}}


def _part(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = of.get(key)
    return found if isinstance(found, Mapping) else {}
