"""When a container of the stack counts as started or ready: looked at each second, from the first one on.

NVIDIA's operator first looks after 60 s and then every 10 s, since its probe runs ``nvidia-smi`` each time. Ours asks
for a file first, which costs nothing while the driver is built or loaded, so there is nothing to wait for.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.api.driver.node_status import DRIVER_CONTAINER_READY, MARKER_FOLDER

Json = dict[str, Any]

#: Seconds that a driver may take to start: gpu-operator's 60 s + 120 x 10 s, and more for a slow build.
_PATIENCE = 1800
#: Seconds that one look may take: ``nvidia-smi`` on many cards without persistence mode.
_TIMEOUT = 60

#: Written by NVIDIA's driver containers that run daemons besides.
_DAEMONS = ".driver-daemons-status"

#: Where NVIDIA's containers show their root to the node, as their last step (gpu-driver-container, ``_mount_rootfs``).
_ROOT = "/run/nvidia/driver"
#: A file in the container's own root, from which one run of it is told from another.
_RUN = "/.tessera-run"

#: Modules may be loaded, and files mounted, from an earlier run of the container, which this one is about to replace:
#: only with its own root in place it has come to the end. A marker that is too early goes before anybody trusts it.
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
    """The driver container's startup probe, which also writes the marker that others wait for.

    Args:
        written: fields of the policy's probe. How long a driver may take and how long a look may take count; period
            and delay do not, as nothing is gained by looking later.
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
    """Before the driver container is told to end: its marker goes, so that nobody begins with a driver that leaves."""
    command = f"rm -f {MARKER_FOLDER}/{DRIVER_CONTAINER_READY} {MARKER_FOLDER}/{_DAEMONS}"
    return {"preStop": {"exec": {"command": ["sh", "-c", command]}}}


def toolkit_ready(files: Sequence[str]) -> Json:
    """The toolkit runs and the container runtime's configuration knows it.

    Args:
        files: where that would stand; none where the toolkit configures nothing.
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
