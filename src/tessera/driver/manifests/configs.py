"""Mounts the ConfigMaps and Secrets that a policy names into driver containers, and sets OpenShift's proxy there.

The mount paths are those of gpu-operator v26.7.0 (``internal/state/driver_volumes.go``). The files of a ConfigMap of
repositories or certificates go into a folder in which the image has other files too. So each key is mounted by itself,
and the keys must be known before the DaemonSet is made.

Driver containers download packages and sources. On OpenShift with a cluster-wide proxy they get its addresses as
variables in both spellings, as in gpu-operator. If the proxy has its own certificate, the container's bundle is
replaced by the one that OpenShift writes into each ConfigMap with a given label.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.nodes.node_marks import DriverStrategy
from tessera.driver.driver_sets import DriverSet, Json
from tessera.gpu_operator.driver_policy import DriverPolicy

#: The keys of each ConfigMap, by the ConfigMap's name.
Keys = Mapping[str, Sequence[str]]

REPOSITORIES, CERTIFICATES, MODULES = "repoConfig", "certConfig", "kernelModuleConfig"
LICENSING, TOPOLOGY = "licensingConfig", "virtualTopology"

_YUM, _PEM = "/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"
_APT, _ZYPP = "/etc/apt/sources.list.d", "/etc/zypp/repos.d"
_REPOSITORY_FOLDERS = {
    **dict.fromkeys(("centos", "rhcos", "rhel", "rocky", "almalinux", "ol"), _YUM),
    **dict.fromkeys(("debian", "ubuntu"), _APT),
    **dict.fromkeys(("sles", "sl-micro"), _ZYPP),
}
_CERTIFICATE_FOLDERS = {
    **dict.fromkeys(("centos", "rhcos", "rhel", "rocky", "almalinux", "ol"), _PEM),
    **dict.fromkeys(("debian", "ubuntu"), "/usr/local/share/ca-certificates"),
    **dict.fromkeys(("sles", "sl-micro"), "/etc/pki/trust/anchors"),
}
#: Subscription files of the host; without them a build there finds no packages.
_SUBSCRIPTIONS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "rhel": (
        ("/etc/pki/entitlement", "/run/secrets/etc-pki-entitlement", "Directory"),
        ("/etc/yum.repos.d/redhat.repo", "/run/secrets/redhat.repo", "File"),
        ("/etc/rhsm", "/run/secrets/rhsm", "Directory"),
    ),
    **dict.fromkeys(
        ("sles", "sl-micro"),
        (
            ("/etc/zypp/credentials.d", "/etc/zypp/credentials.d", "Directory"),
            ("/etc/SUSEConnect", "/etc/SUSEConnect", "FileOrCreate"),
        ),
    ),
}
#: Each key of a vGPU licence and its mount path.
_LICENCE_FILES = {
    "gridd.conf": "/drivers/gridd.conf",
    "client_configuration_token.tok": "/drivers/ClientConfigToken/client_configuration_token.tok",
}


class Extra(msgspec.Struct, frozen=True):
    """A volume with its mounts."""

    volume: Json
    mounts: tuple[Json, ...]


class DriverConfigError(ValueError):
    """An object that the policy names cannot be mounted; the text says which and why."""


def needed_config_maps(policy: DriverPolicy, made: DriverSet) -> list[str]:
    """Names of the ConfigMaps whose keys must be known."""
    licence = policy.config_maps.get(LICENSING, "")
    return [*(name for name, _ in _folders(policy, made)), *([licence] if licence else [])]


def extras(policy: DriverPolicy, made: DriverSet, keys: Keys) -> list[Extra]:
    """All volumes that the policy adds to the driver container.

    Raises:
        DriverConfigError: the operating system has no path for one of them, or a ConfigMap does not exist.
    """
    return [
        *_keyed_extras(policy, made, keys),
        *_subscriptions(policy, made),
        *_modules(made),
        *_fixed_extras(policy, keys),
    ]


def _folders(policy: DriverPolicy, made: DriverSet) -> Iterator[tuple[str, str]]:
    """Yields the name of each ConfigMap and the folder for its keys."""
    builds = made.strategy is DriverStrategy.BUILT
    for purpose, folders in ((REPOSITORIES, _REPOSITORY_FOLDERS), (CERTIFICATES, _CERTIFICATE_FOLDERS)):
        name = policy.config_maps.get(purpose, "")
        if name and builds:
            folder = folders.get(made.pool.os_id)
            if folder is None:
                known = ", ".join(sorted(folders))
                raise DriverConfigError(
                    f"{purpose} {name!r}: no place for it is known on {made.pool.os_id}; known are {known}"
                )
            yield name, folder
    if policy.config_maps.get(MODULES):
        yield policy.config_maps[MODULES], "/drivers"


def _keyed_extras(policy: DriverPolicy, made: DriverSet, keys: Keys) -> Iterator[Extra]:
    for name, folder in _folders(policy, made):
        if name not in keys:
            raise DriverConfigError(f"ConfigMap {name!r} is not in Tessera's namespace; create it there")
        mounts = tuple(
            {"name": name, "mountPath": f"{folder}/{key}", "subPath": key, "readOnly": True}
            for key in sorted(keys[name])
        )
        yield Extra({"name": name, "configMap": {"name": name}}, mounts)


def _subscriptions(policy: DriverPolicy, made: DriverSet) -> Iterator[Extra]:
    """RHCOS has no subscriptions: there the Driver Toolkit builds, and CRI-O mounts the entitlements of the host."""
    if made.strategy is not DriverStrategy.BUILT or made.pool.ostree:
        return
    if made.pool.os_id == "rhel" and policy.config_maps.get(REPOSITORIES):
        return
    for number, (path, at, kind) in enumerate(_SUBSCRIPTIONS.get(made.pool.os_id, ())):
        name = f"subscription-config-{number}"
        yield Extra(
            {"name": name, "hostPath": {"path": path, "type": kind}},
            ({"name": name, "mountPath": at, "readOnly": True},),
        )


def _modules(made: DriverSet) -> Iterator[Extra]:
    """Precompiled containers of SUSE read the host's modules."""
    if made.strategy is not DriverStrategy.BUILT and made.pool.os_id in {"sles", "sl-micro"}:
        yield Extra(
            {"name": "lib-modules", "hostPath": {"path": "/lib/modules", "type": "Directory"}},
            ({"name": "lib-modules", "mountPath": "/run/host/lib/modules", "readOnly": True},),
        )


def _fixed_extras(policy: DriverPolicy, keys: Keys) -> Iterator[Extra]:
    """Files whose names are fixed. A licence's token is left out if its ConfigMap has none."""
    name = policy.config_maps.get(LICENSING, "")
    if policy.licensing_secret:
        source: Json = {"secret": {"secretName": policy.licensing_secret}}
        yield Extra({"name": "licensing-config", **source}, _licence(_LICENCE_FILES))
    elif name:
        source = {"configMap": {"name": name}}
        licence_files = {key: at for key, at in _LICENCE_FILES.items() if key in keys.get(name, ())}
        yield Extra({"name": "licensing-config", **source}, _licence(licence_files))
    if policy.config_maps.get(TOPOLOGY):
        topology = {"name": "topology-config", "configMap": {"name": policy.config_maps[TOPOLOGY]}}
        file = "nvidia-topologyd.conf"
        yield Extra(topology, (_file("topology-config", f"/etc/nvidia/{file}", file),))


def _licence(files: Mapping[str, str]) -> tuple[Json, ...]:
    return tuple(_file("licensing-config", at, key) for key, at in files.items())


def _file(volume: str, at: str, key: str) -> Json:
    return {"name": volume, "mountPath": at, "subPath": key, "readOnly": True}


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
