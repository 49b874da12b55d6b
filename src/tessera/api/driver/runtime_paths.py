"""Variables of ``toolkit.env`` that name files of the host, as NVIDIA's operator reads them.

Their folders are mounted into the toolkit's container, so each must be a path that Kubernetes can mount.
"""

from collections.abc import Mapping

from tessera.api.documents import join_path, quote_value
from tessera.api.driver.field_reader import FieldReader

FILE_VARIABLES = (
    "RUNTIME_CONFIG",
    "RUNTIME_DROP_IN_CONFIG",
    "RUNTIME_SOCKET",
    "CONTAINERD_CONFIG",
    "CONTAINERD_SOCKET",
    "CRIO_CONFIG",
    "DOCKER_CONFIG",
    "DOCKER_SOCKET",
    "NRI_SOCKET",
)
_HANDLER = "nvidia"


def judge_toolkit_env(reading: FieldReader, env: Mapping[str, str], path: str) -> None:
    """Notes mistakes in paths, and variables that Tessera sets itself."""
    for name in FILE_VARIABLES:
        value = env.get(name, "")
        parts = value.split("/")
        if value and (parts[0] or not parts[-1] or ".." in parts or "\0" in value):
            text = f"{quote_value(value)} must be an absolute path of a file on the host, without .."
            reading.add_problem(join_path(path, name), text)
    if env.get("CONTAINERD_RUNTIME_CLASS", _HANDLER) != _HANDLER:
        text = f"no effect: the handler is {_HANDLER!r}, by which Tessera's RuntimeClass finds it"
        reading.add_notice(join_path(path, "CONTAINERD_RUNTIME_CLASS"), text)
