"""Probes that decide when a container of the driver stack is started or ready; kubelet runs them every second.

NVIDIA's operator probes first after 60 s and then every 10 s, since its probe runs ``nvidia-smi`` each time. Ours looks
for a file first. That costs nothing while the driver is built or loaded, so the probe starts at once.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.api.driver.node_status import DRIVER_CONTAINER_READY, MARKER_FOLDER

Json = dict[str, Any]

#: Seconds that a driver may take to start: gpu-operator's 60 s + 120 x 10 s, and more for a slow build.
_PATIENCE = 1800
#: Timeout of one probe, seconds: ``nvidia-smi`` is slow on many GPUs without persistence mode.
_TIMEOUT = 60

#: Files that NVIDIA's driver containers write if they also run daemons.
_DAEMONS = ".driver-daemons-status"

#: Where NVIDIA's containers mount their root for the node, as their last step (gpu-driver-container,
#: ``_mount_rootfs``).
_ROOT = "/run/nvidia/driver"
#: A file in the container's own root that identifies one run of the container.
_RUN = "/.tessera-run"

#: An earlier run of the container may have left modules loaded and files mounted, which this run is about to replace.
#: A run is complete only once its own root is mounted. The script removes a marker that an earlier run left.
_STARTED = f"""\
mkdir -p {MARKER_FOLDER} && cd {MARKER_FOLDER} || exit 1
wrong() {{ rm -f {DRIVER_CONTAINER_READY}; echo "$1"; exit 1; }}
[ -f /sys/module/nvidia/refcnt ] || wrong "kernel module nvidia is not loaded"
if [ -f {_DAEMONS} ] && [ "$(cat {_DAEMONS})" != Ready ]; then
  wrong "daemons of the driver are not ready: $(cat {_DAEMONS})"
fi
[ -s {_RUN} ] || cat /proc/sys/kernel/random/uuid > {_RUN}
[ "$(cat {_RUN})" = "$(cat {_ROOT}{_RUN} 2>/dev/null)" ] || wrong "the driver's files are not at {_ROOT} yet"
nvidia-smi >/dev/null || wrong "nvidia-smi failed"
{{
  echo "GDRCOPY_ENABLED: ${{GDRCOPY_ENABLED:-false}}"
  echo "GDS_ENABLED: ${{GDS_ENABLED:-false}}"
  echo "GPU_DIRECT_RDMA_ENABLED: ${{GPU_DIRECT_RDMA_ENABLED:-false}}"
}} > {DRIVER_CONTAINER_READY}.tmp && mv {DRIVER_CONTAINER_READY}.tmp {DRIVER_CONTAINER_READY}
"""


def driver_startup(written: Mapping[str, int]) -> Json:
    """The driver container's startup probe; it also writes the marker that other containers wait for.

    Args:
        written: fields of the policy's probe. Its total time and its timeout apply. Its period and delay do not: a
            later probe gains nothing.
    """
    patience = _PATIENCE
    if "failureThreshold" in written or "periodSeconds" in written:
        period, failures = written.get("periodSeconds", 10), written.get("failureThreshold", 120)
        patience = max(60, written.get("initialDelaySeconds", 0) + period * failures)
    return {
        "exec": {"command": ["sh", "-c", _STARTED]},
        "initialDelaySeconds": 0,
        "periodSeconds": 1,
        "timeoutSeconds": written.get("timeoutSeconds", _TIMEOUT),
        "failureThreshold": patience,
        "successThreshold": 1,
    }


def driver_stop() -> Json:
    """The preStop hook of the driver container: removes its marker, so that nothing starts on a driver that ends."""
    command = f"rm -f {MARKER_FOLDER}/{DRIVER_CONTAINER_READY} {MARKER_FOLDER}/{_DAEMONS}"
    return {"preStop": {"exec": {"command": ["sh", "-c", command]}}}


def toolkit_ready(files: Sequence[str]) -> Json:
    """Readiness probe: the toolkit runs, and the container runtime's configuration names it.

    Args:
        files: configuration files to look into; empty if the toolkit configures nothing.
    """
    known = f" && grep -qs nvidia {shlex.join(files)}" if files else ""
    command = f'[ -s "$TOOLKIT_PID_FILE" ]{known}'
    return {
        "exec": {"command": ["sh", "-c", command]},
        "initialDelaySeconds": 0,
        "periodSeconds": 1,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
        "successThreshold": 1,
    }
