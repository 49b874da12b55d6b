"""The sharing profiles that an installation brings: time slices and MPS, with the usual numbers of shares.

The names and the form are those of CERN's articles on shared GPUs: ``slice-4`` makes four shares of each whole card, a
container gets one, and the resource is called ``nvidia.com/gpu.shared``. Shares by MPS are ``nvidia.com/gpu.mps``, so
that both kinds can be in one cluster and a pod can tell them apart.
"""

from collections.abc import Mapping

#: Shares of a card in the profiles.
TIME_SLICES = (2, 4, 8, 10)
#: NVIDIA's limit is 48 clients of a card from compute capability 7.0 on; each gets its part of memory and threads.
MPS_SHARES = (2, 4, 8)

_TEXT = """\
# {count} shares of each whole card, {how}. A node has the profile that its label names:
#   kubectl label node NODE nvidia.com/device-plugin.config={name}
# Tessera renews this text with each version until somebody changes it. Write your own profiles under other keys.
version: v1
sharing:
  {kind}:
{flags}    resources:
    - name: nvidia.com/gpu
      rename: {rename}
      replicas: {count}
"""


def default_profiles() -> Mapping[str, str]:
    """Returns the profiles by their name, which is their key in the ConfigMap."""
    slices = {f"slice-{count}": _time_slices(f"slice-{count}", count) for count in TIME_SLICES}
    return slices | {f"mps-{count}": _mps(f"mps-{count}", count) for count in MPS_SHARES}


def _time_slices(name: str, count: int) -> str:
    flags = "    failRequestsGreaterThanOne: true\n"
    how = "which take turns on it; nothing limits their memory (tessera agent --memory-limits does)"
    return _TEXT.format(
        name=name, count=count, kind="timeSlicing", flags=flags, rename="nvidia.com/gpu.shared", how=how
    )


def _mps(name: str, count: int) -> str:
    how = "which run side by side; each has its part of memory and threads"
    return _TEXT.format(name=name, count=count, kind="mps", flags="", rename="nvidia.com/gpu.mps", how=how)
