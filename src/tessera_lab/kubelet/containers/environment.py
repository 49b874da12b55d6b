"""What a container gets: environment and command line as kubelet makes them, and edits by CDI.

Of the environment it knows ``value``, ``fieldRef``, ``resourceFieldRef``, ``configMapKeyRef``, ``secretKeyRef``,
``envFrom`` and ``$(VAR)`` (``pkg/kubelet/kubelet_pods.go``, ``k8s.io/kubernetes/third_party/forked/golang/expansion``).

:class:`CdiRegistry` turns names of devices into edits of the container, as the container runtime does by the Container
Device Interface. It reads every JSON file of the node's CDI folders when a container is created, and applies the edits
of the requested devices. It keeps only edits that a simulated container can show: environment, device nodes, mounts.
Real runtimes read the folders in a thread of their own after a change, and may be late (:attr:`CdiRegistry.is_late`).
Sources: CNCF container-device-interface specification 0.8, ``pkg/cdi/cache.go``; runc for a mount whose source is gone.
"""

import base64
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tessera.kube.quantity import integer_value, milli_value

Json = Mapping[str, Any]

#: Reads an object's ``data`` by plural name, namespace and name; None when there is no such object.
DataSource = Callable[[str, str, str], Awaitable[Mapping[str, str] | None]]

_VARIABLE = re.compile(r"\$(\$|\(([^()]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_KINDS = {"configmaps": "ConfigMap", "secrets": "Secret"}


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


class CdiError(Exception):
    """The runtime cannot create the container; the text is containerd's."""


class CdiEdits(msgspec.Struct, frozen=True, kw_only=True):
    """Edits that CDI makes to a container."""

    env: Mapping[str, str] = {}
    device_nodes: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()


class CdiRegistry:
    """The CDI devices of one node.

    Args:
        folders: folders of the files, in rising priority (``/etc/cdi``, ``/var/run/cdi``).

    Attributes:
        is_late: the runtime has not noticed changes since this was set, and goes by what it read before.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self.is_late = False
        self._found: dict[str, list[Any]] = {}
        self._read: dict[str, tuple[tuple[int, int, int], Mapping[str, list[Any]]]] = {}

    def edits(self, names: Sequence[str]) -> CdiEdits:
        """The edits of the devices ``vendor/class=device``, in order.

        Raises:
            CdiError: no file describes one of them, or a file of the folders that is mounted is gone.
        """
        if not names:
            return CdiEdits()
        devices = self._found = self._found if self.is_late else self._devices()
        missing = [name for name in names if name not in devices]
        if missing:
            raise CdiError(
                "failed to generate spec: CDI device injection failed: unresolvable CDI devices " + ", ".join(missing)
            )
        env: dict[str, str] = {}
        nodes: list[str] = []
        mounts: list[str] = []
        for edit in (edit for name in names for edit in devices[name]):
            env.update(entry.split("=", 1) for entry in edit.get("env") or () if "=" in entry)
            nodes += [node["path"] for node in edit.get("deviceNodes") or ()]
            mounts += [self._mounted(mount) for mount in edit.get("mounts") or ()]
        return CdiEdits(env=env, device_nodes=tuple(dict.fromkeys(nodes)), mounts=tuple(dict.fromkeys(mounts)))

    def _mounted(self, mount: Mapping[str, Any]) -> str:
        """Returns where a mount is seen. Only files of the CDI folders are looked for: a node has no others here."""
        source = Path(mount["hostPath"])
        if source.parent in self._folders and not source.exists():
            raise CdiError(
                "failed to create containerd task: failed to create shim task: OCI runtime create failed: error"
                f' mounting "{source}" to rootfs at "{mount["containerPath"]}": no such file or directory'
            )
        path: str = mount["containerPath"]
        return path

    def _devices(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        seen: set[str] = set()
        for folder in self._folders:
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except FileNotFoundError:
                continue
            for entry in entries:
                if entry.name.endswith(".json"):
                    seen.add(entry.path)
                    found.update(self._file(entry))
        self._read = {path: read for path, read in self._read.items() if path in seen}
        return found

    def _file(self, entry: os.DirEntry[str]) -> Mapping[str, list[Any]]:
        """Returns a file's devices; skips a file that is not valid CDI, as the runtime does."""
        try:
            status = entry.stat()
            identity = (status.st_mtime_ns, status.st_size, status.st_ino)
            known = self._read.get(entry.path)
            if known is None or known[0] != identity:
                known = self._read[entry.path] = (identity, _parse(Path(entry.path).read_bytes()))
        except FileNotFoundError:
            return {}
        return known[1]


def _parse(content: bytes) -> Mapping[str, list[Any]]:
    try:
        spec = msgspec.json.decode(content)
        shared = [spec["containerEdits"]] if spec.get("containerEdits") else []
        return {
            f"{spec['kind']}={device['name']}": [*shared, device.get("containerEdits") or {}]
            for device in spec["devices"]
        }
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return {}
