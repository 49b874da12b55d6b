"""Cluster and credentials from kubeconfig files merged as kubectl merges them.

The rules are kubectl's. An explicit file is read alone. Else the files of ``KUBECONFIG`` are merged: the first file
that names a cluster, user, context or the current context wins, and missing files are skipped. Without that variable,
``~/.kube/config`` is read. Relative paths count from their file's folder; ``*-data`` wins over the file of the same
field. Inside a pod without any kubeconfig, the service account is used.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tessera.clock import Clock
from tessera.kube.cluster_config import SERVICE_ACCOUNT, ClusterConfig, ClusterConfigError, in_cluster
from tessera.kube.credentials import (
    Credential,
    Credentials,
    ExecCredentials,
    ExecPlugin,
    StaticCredentials,
    TokenFile,
)


def load_config(
    *,
    clock: Clock,
    kubeconfig: str | None = None,
    context: str | None = None,
    environment: Mapping[str, str] | None = None,
    home: Path | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterConfig:
    """The configuration that kubectl would use with the same arguments.

    Args:
        clock: for expiring credentials.
        kubeconfig: ``--kubeconfig``: this file alone.
        context: ``--context``: instead of the current one.
        environment: variables; the process's own if left out.
        home: where ``.kube/config`` is; the user's home if left out.
        service_account: the pod's identity.

    Raises:
        ClusterConfigError: nothing usable is configured.
        CredentialError: an exec plugin cannot be used.
    """
    env = os.environ if environment is None else environment
    paths = _paths(kubeconfig, env, home)
    merged = _merge(paths, must_exist=kubeconfig is not None)
    if not merged.contexts and not merged.clusters and kubeconfig is None and context is None:
        if env.get("KUBERNETES_SERVICE_HOST"):
            return in_cluster(clock=clock, environment=env, service_account=service_account)
        raise ClusterConfigError(
            f"no cluster is configured: {', '.join(map(str, paths))} does not exist or is empty, and this is no pod;"
            " set KUBECONFIG or give --kubeconfig"
        )
    return _select(merged, context or merged.current, env, clock)


class _Entry(msgspec.Struct, frozen=True):
    """A named entry and the folder that its relative paths count from."""

    body: Mapping[str, Any]
    folder: Path
    where: str

    def path(self, field: str) -> Path | None:
        text = self.body.get(field)
        return self.folder / text if text else None

    def content(self, field: str) -> bytes:
        """``<field>-data`` decoded, or the file that ``<field>`` names, or nothing."""
        data = self.body.get(f"{field}-data")
        if data:
            try:
                return base64.b64decode(data, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ClusterConfigError(f"{self.where}: {field}-data is not base64") from error
        path = self.path(field)
        try:
            return path.read_bytes() if path else b""
        except OSError as error:
            raise ClusterConfigError(f"{self.where}: {field} {path}: {error.strerror}") from error


class _MergedConfig(msgspec.Struct):
    current: str = ""
    clusters: dict[str, _Entry] = {}
    users: dict[str, _Entry] = {}
    contexts: dict[str, _Entry] = {}


def _paths(kubeconfig: str | None, env: Mapping[str, str], home: Path | None) -> list[Path]:
    if kubeconfig is not None:
        return [Path(kubeconfig)]
    listed = [Path(part) for part in env.get("KUBECONFIG", "").split(os.pathsep) if part]
    return listed or [(home or _home(env)) / ".kube" / "config"]


def _home(env: Mapping[str, str]) -> Path:
    """The user's home. A container's user may have no entry in ``/etc/passwd`` and then has none but ``/``."""
    try:
        return Path(env["HOME"]) if env.get("HOME") else Path.home()
    except RuntimeError:
        return Path("/")


def _merge(paths: list[Path], *, must_exist: bool) -> _MergedConfig:
    merged = _MergedConfig()
    for path in paths:
        if must_exist or path.exists():
            _merge_file(merged, _read(path), path)
    return merged


def _read(path: Path) -> Mapping[str, Any]:
    import yaml  # slow to import, and not needed in a pod

    try:
        # The loader in C, where PyYAML has it: the other takes 10 ms for a file with certificates.
        content = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except OSError as error:
        raise ClusterConfigError(f"kubeconfig {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ClusterConfigError(f"kubeconfig {path} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ClusterConfigError(f"kubeconfig {path}: a mapping with clusters, users and contexts is expected")
    return content


def _merge_file(merged: _MergedConfig, content: Mapping[str, Any], path: Path) -> None:
    merged.current = merged.current or content.get("current-context") or ""
    for plural, inner, known in (
        ("clusters", "cluster", merged.clusters),
        ("users", "user", merged.users),
        ("contexts", "context", merged.contexts),
    ):
        for entry in content.get(plural) or ():
            name = str(entry.get("name", ""))
            where = f"kubeconfig {path}, {inner} {name!r}"
            known.setdefault(name, _Entry(entry.get(inner) or {}, path.parent.absolute(), where))


def _select(merged: _MergedConfig, name: str, env: Mapping[str, str], clock: Clock) -> ClusterConfig:
    if not name:
        step = f"choose one with --context: {_list_names(merged.contexts)}"
        if not merged.contexts:
            step = "there is none to choose: name another file with --kubeconfig"
        raise ClusterConfigError(f"no current context; {step}")
    context = merged.contexts.get(name)
    if context is None:
        raise ClusterConfigError(f"context {name!r} does not exist; there are: {_list_names(merged.contexts)}")
    cluster = _find_referenced(context, "cluster", merged.clusters)
    server = cluster.body.get("server")
    if not server:
        raise ClusterConfigError(f"{cluster.where}: server is not set")
    user = _find_referenced(context, "user", merged.users) if context.body.get("user") else None
    return ClusterConfig(
        server=server.rstrip("/"),
        credentials=_credentials(user, cluster, env, clock) if user else StaticCredentials(),
        namespace=context.body.get("namespace") or "default",
        ca=cluster.content("certificate-authority"),
        verify=not cluster.body.get("insecure-skip-tls-verify"),
        server_name=cluster.body.get("tls-server-name") or "",
        proxy=cluster.body.get("proxy-url") or "",
        context=name,
        impersonated=_impersonated(user.body) if user else (),
    )


def _impersonated(body: Mapping[str, Any]) -> tuple[str, ...]:
    return (str(body["as"]), *map(str, body.get("as-groups") or ())) if body.get("as") else ()


def _find_referenced(context: _Entry, field: str, known: Mapping[str, _Entry]) -> _Entry:
    name = context.body.get(field, "")
    if name not in known:
        raise ClusterConfigError(f"{context.where}: {field} {name!r} does not exist; there are: {_list_names(known)}")
    return known[name]


def _credentials(user: _Entry, cluster: _Entry, env: Mapping[str, str], clock: Clock) -> Credentials:
    body = user.body
    if body.get("auth-provider"):
        raise ClusterConfigError(
            f"{user.where}: 'auth-provider' is not supported; use an exec plugin, a token or a certificate"
        )
    if body.get("exec"):
        return ExecCredentials(_plugin(user, cluster), environment=env, clock=clock)
    base = Credential(certificate=user.content("client-certificate"), key=user.content("client-key"))
    token_file = user.path("tokenFile")
    if token_file is not None:
        return TokenFile(token_file, clock=clock, base=base)
    return StaticCredentials(msgspec.structs.replace(base, authorization=_authorization(body)))


def _authorization(body: Mapping[str, Any]) -> str:
    if body.get("token"):
        return f"Bearer {body['token']}"
    if body.get("username"):
        pair = f"{body['username']}:{body.get('password', '')}"
        return "Basic " + base64.b64encode(pair.encode()).decode()
    return ""


def _plugin(user: _Entry, cluster: _Entry) -> ExecPlugin:
    body = user.body["exec"]
    command = str(body.get("command", ""))
    if not command:
        raise ClusterConfigError(f"{user.where}: exec.command is not set")
    if os.sep in command:
        command = str(user.folder / command)
    return ExecPlugin(
        command=command,
        args=tuple(body.get("args") or ()),
        env={pair["name"]: pair["value"] for pair in body.get("env") or ()},
        api_version=str(body.get("apiVersion", "")),
        install_hint=body.get("installHint") or "",
        cluster=_cluster_info(cluster) if body.get("provideClusterInfo") else None,
        interactive=body.get("interactiveMode") or "IfAvailable",
    )


def _cluster_info(cluster: _Entry) -> Mapping[str, Any]:
    ca = cluster.content("certificate-authority")
    info = {
        "server": cluster.body.get("server"),
        "tls-server-name": cluster.body.get("tls-server-name"),
        "insecure-skip-tls-verify": cluster.body.get("insecure-skip-tls-verify"),
        "certificate-authority-data": base64.b64encode(ca).decode() if ca else None,
        "proxy-url": cluster.body.get("proxy-url"),
    }
    return {name: value for name, value in info.items() if value}


def _list_names(entries: Mapping[str, _Entry]) -> str:
    return ", ".join(sorted(entries)) or "none"
