"""The settings files of a node's container runtime, and how they are mounted into NVIDIA's toolkit container.

An administrator names files of the host in ``toolkit.env``, since k3s, RKE2 and microk8s keep them in other places. The
toolkit's container reads the same variables as paths inside itself. So each file's folder is mounted at a fixed path,
and the variables name the file there. Source: gpu-operator v26.7.0, ``transformForRuntime``.
"""

from collections.abc import Iterator, Mapping

import msgspec

from tessera.driver.manifests.host import HOST_ROOT, Mount
from tessera.driver.manifests.names import NAMESPACE, RUNTIME_CLASS

_CONFIG, _DROP_IN, _SOCKETS, _NRI = (
    "/runtime/config-dir",
    "/runtime/config-dir.d",
    "/runtime/sock-dir",
    "/runtime/nri-sock-dir",
)
_CREATE = "DirectoryOrCreate"
_NRI_SOCKET = "/var/run/nri/nri.sock"
#: Each variable names the settings that the toolkit reads first: ``command,file=/etc/containerd/config.toml``.
_SOURCES = ("RUNTIME_CONFIG_SOURCES", "RUNTIME_CONFIG_SOURCE")


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """A container runtime and its files on the host.

    Attributes:
        name: the toolkit's name for the runtime.
        config: its settings file.
        drop_in: the settings file that the toolkit adds; empty if the runtime reads only one file.
        socket: the socket over which the toolkit makes it reload its settings; empty if the toolkit restarts it
            instead.
    """

    name: str
    config: str
    drop_in: str = ""
    socket: str = ""

    def placed(self, env: Mapping[str, str]) -> "Runtime":
        """The same runtime with file paths from ``toolkit.env``; its own variable wins over a general one."""
        own = self.name.upper()
        return msgspec.structs.replace(
            self,
            config=env.get(f"{own}_CONFIG") or env.get("RUNTIME_CONFIG") or self.config,
            drop_in=self.drop_in and (env.get("RUNTIME_DROP_IN_CONFIG") or self.drop_in),
            socket=self.socket and (env.get(f"{own}_SOCKET") or env.get("RUNTIME_SOCKET") or self.socket),
        )

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Variables of the toolkit's container; they replace those of ``toolkit.env``."""
        own = self.name.upper()
        found = {"RUNTIME": self.name, **dict.fromkeys(("RUNTIME_CONFIG", f"{own}_CONFIG"), _in(_CONFIG, self.config))}
        if self.drop_in:
            found["RUNTIME_DROP_IN_CONFIG"] = _in(_DROP_IN, self.drop_in)
            found["RUNTIME_DROP_IN_CONFIG_HOST_PATH"] = self.drop_in
        if self.socket:
            found |= dict.fromkeys(("RUNTIME_SOCKET", f"{own}_SOCKET"), _in(_SOCKETS, self.socket))
        if self.name == CONTAINERD.name:
            found["CONTAINERD_RUNTIME_CLASS"] = RUNTIME_CLASS
        return found | {name: ",".join(map(_below_host, env[name].split(","))) for name in _SOURCES if env.get(name)}

    def mounts(self) -> list[Mount]:
        """Mounts of the toolkit's container."""
        return list(self._mounts())

    def _mounts(self) -> Iterator[Mount]:
        yield Mount(name=f"{self.name}-config", path=_folder(self.config), at=_CONFIG, type=_CREATE)
        if self.drop_in:
            yield Mount(name=f"{self.name}-drop-in-config", path=_folder(self.drop_in), at=_DROP_IN, type=_CREATE)
        if self.socket:
            yield Mount(name=f"{self.name}-socket", path=_folder(self.socket), at=_SOCKETS)

    def files(self) -> list[str]:
        """Paths of its settings files inside the toolkit's container."""
        return [*([_in(_DROP_IN, self.drop_in)] if self.drop_in else ()), _in(_CONFIG, self.config)]


CONTAINERD = Runtime(
    name="containerd",
    config="/etc/containerd/config.toml",
    drop_in="/etc/containerd/conf.d/99-nvidia.toml",
    socket="/run/containerd/containerd.sock",
)
CRIO = Runtime(name="crio", config="/etc/crio/config.toml", drop_in="/etc/crio/crio.conf.d/99-nvidia.conf")
DOCKER = Runtime(name="docker", config="/etc/docker/daemon.json", socket="/var/run/docker.sock")


def nri_environment(runtime: Runtime, env: Mapping[str, str]) -> dict[str, str]:
    """Variables for a toolkit that is a plugin of the runtime (NRI); it changes no settings and restarts nothing."""
    socket = _in(_NRI, env.get("NRI_SOCKET") or _NRI_SOCKET)
    # Only pods of this namespace may ask the plugin for devices.
    by_pods = {"NRI_NAMESPACE": NAMESPACE}
    return {"RUNTIME": runtime.name, "ENABLE_NRI_PLUGIN": "true", "NRI_SOCKET": socket, **by_pods}


def nri_mount(env: Mapping[str, str]) -> Mount:
    """The only mount of an NRI toolkit: a read-only host (Talos) has no folder for settings."""
    return Mount(name="nri-socket", path=_folder(env.get("NRI_SOCKET") or _NRI_SOCKET), at=_NRI, type=_CREATE)


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _in(folder: str, path: str) -> str:
    return f"{folder}/{path.rpartition('/')[2]}"


def _below_host(source: str) -> str:
    kind, _, path = source.partition("=")
    return f"{kind}={HOST_ROOT.at}/{path.lstrip('/')}" if kind == "file" and path else source
