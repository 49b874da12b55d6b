"""A container's environment and command line as kubelet makes them from the pod's spec.

Knows ``value``, ``fieldRef``, ``resourceFieldRef``, ``configMapKeyRef``, ``secretKeyRef``, ``envFrom`` and ``$(VAR)``
(``pkg/kubelet/kubelet_pods.go``, ``k8s.io/kubernetes/third_party/forked/golang/expansion``).
"""

import base64
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tessera.kube.quantity import integer_value, milli_value

Json = Mapping[str, Any]

#: Reads an object's ``data`` by plural name, namespace and name; None when there is no such object.
DataSource = Callable[[str, str, str], Awaitable[Mapping[str, str] | None]]

_VARIABLE = re.compile(r"\$(\$|\(([^()]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ContainerConfigError(Exception):
    """The container cannot be configured (``CreateContainerConfigError``); the text is kubelet's."""


class PodFieldValues:
    """Values of the downward API for one pod and its node.

    Args:
        pod: the pod as decoded JSON.
        pod_ip: its address.
        host_ip: the node's address.
        allocatable: the node's allocatable resources, for resourceFieldRef without a limit.
    """

    def __init__(self, pod: Json, *, pod_ip: str, host_ip: str, allocatable: Mapping[str, str]) -> None:
        self.pod = pod
        self.pod_ip = pod_ip
        self.host_ip = host_ip
        self.allocatable = allocatable

    def field(self, path: str) -> str:
        """Returns the value of a ``fieldRef``.

        Raises:
            ConfigError: the downward API does not offer the field.
        """
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        match = _SUBSCRIPT.fullmatch(path)
        if match:
            return str((metadata.get(match[1]) or {}).get(match[2], ""))
        values = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata.get("namespace", ""),
            "metadata.uid": metadata.get("uid", ""),
            "spec.nodeName": spec.get("nodeName", ""),
            "spec.serviceAccountName": spec.get("serviceAccountName", ""),
            "status.podIP": self.pod_ip,
            "status.podIPs": self.pod_ip,
            "status.hostIP": self.host_ip,
            "status.hostIPs": self.host_ip,
        }
        if path not in values:
            raise ContainerConfigError(f"unsupported fieldPath: {path}")
        return str(values[path])

    def resource(self, reference: Json, container: Json) -> str:
        """Returns the value of a ``resourceFieldRef``; a missing limit is the node's allocatable amount.

        Raises:
            ConfigError: the downward API does not offer the resource.
        """
        kind, _, name = str(reference["resource"]).partition(".")
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        text = str((limits if kind == "limits" else requests).get(name) or self.allocatable.get(name, "0"))
        divisor = str(reference.get("divisor") or "1")
        if kind not in {"limits", "requests"}:
            raise ContainerConfigError(f"unsupported container resource : {reference['resource']}")
        thousandths = milli_value(divisor) or 1000
        return (
            str(-(-milli_value(text) // thousandths))
            if name == "cpu"
            else str(-(-integer_value(text) * 1000 // thousandths))
        )


async def environment(container: Json, facts: PodFieldValues, data: DataSource) -> dict[str, str]:
    """Returns the variables of the container's spec.

    Raises:
        ConfigError: a ConfigMap, Secret or key that is not optional is missing.
    """
    namespace = str(facts.pod["metadata"].get("namespace", ""))
    env: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        env |= await _env_from(source, namespace, data)
    for entry in container.get("env") or ():
        origin = entry.get("valueFrom")
        if origin is None:
            env[entry["name"]] = expand(entry.get("value") or "", env)
        elif "fieldRef" in origin:
            env[entry["name"]] = facts.field(origin["fieldRef"]["fieldPath"])
        elif "resourceFieldRef" in origin:
            env[entry["name"]] = facts.resource(origin["resourceFieldRef"], container)
        else:
            value = await _key(origin, namespace, data)
            if value is not None:
                env[entry["name"]] = value
    return env


def command_line(container: Json, env: Mapping[str, str]) -> tuple[str, ...]:
    """Command and arguments with ``$(VAR)`` expanded."""
    parts: Sequence[str] = [*(container.get("command") or ()), *(container.get("args") or ())]
    return tuple(expand(part, env) for part in parts)


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replaces ``$(VAR)`` if VAR is known, and ``$$`` by a dollar sign."""

    def replace(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return env.get(match[2], match[0])

    return _VARIABLE.sub(replace, text)


async def _env_from(source: Json, namespace: str, data: DataSource) -> dict[str, str]:
    plural, reference = (
        ("configmaps", source["configMapRef"])
        if "configMapRef" in source
        else (
            "secrets",
            source["secretRef"],
        )
    )
    found = await _object(plural, reference, namespace, data)
    prefix = source.get("prefix") or ""
    return {prefix + name: value for name, value in (found or {}).items()}


async def _key(origin: Json, namespace: str, data: DataSource) -> str | None:
    plural, reference = (
        ("configmaps", origin["configMapKeyRef"])
        if "configMapKeyRef" in origin
        else (
            "secrets",
            origin["secretKeyRef"],
        )
    )
    found = await _object(plural, reference, namespace, data)
    if found is not None and reference["key"] in found:
        return found[reference["key"]]
    if reference.get("optional"):
        return None
    raise ContainerConfigError(
        f"couldn't find key {reference['key']} in {_KINDS[plural]} {namespace}/{reference['name']}"
    )


_KINDS = {"configmaps": "ConfigMap", "secrets": "Secret"}


async def _object(plural: str, reference: Json, namespace: str, data: DataSource) -> Mapping[str, str] | None:
    name = str(reference["name"])
    found = await data(plural, namespace, name)
    if found is None:
        if reference.get("optional"):
            return None
        raise ContainerConfigError(f'{plural[:-1]} "{name}" not found')
    if plural == "secrets":
        return {key: base64.b64decode(value).decode(errors="replace") for key, value in found.items()}
    return found
