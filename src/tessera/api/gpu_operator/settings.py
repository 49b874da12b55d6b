"""Settings of an installation of NVIDIA's gpu-operator that Tessera follows, as values."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.api.documents import Notice
from tessera.api.driver.chart_defaults import DRIVER_ROOT
from tessera.api.driver.driver_policy import DriverPolicy
from tessera.api.sharing.profile import MigStrategy

#: Tessera's namespace, and its own ConfigMaps there, which count if the file names none.
SYSTEM_NAMESPACE = "tessera-system"
OWN_PROFILES = "sharing-profiles"
OWN_LAYOUTS = "mig-layouts"

DEVICE_ID_STRATEGIES = ("uuid", "index")


class NamedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A ConfigMap that the settings name.

    Attributes:
        name: empty for Tessera's own.
        default: the entry for nodes without a label; empty for none.
        data: content of the ConfigMap; None if Tessera does not make it.
    """

    name: str = ""
    default: str = ""
    data: Mapping[str, str] | None = None


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that Tessera follows.

    Attributes:
        mig_strategy: how cards in MIG mode are advertised.
        sharing: the sharing profiles.
        layouts: the MIG layouts.
        mig_reboot: a node may be rebooted for a change of layout.
        device_list_strategies: how containers learn of their devices; None for the agent's default.
        device_id_strategy: of :data:`DEVICE_ID_STRATEGIES`; None for the agent's default.
        pass_device_specs: device nodes are named in the answers to kubelet too.
        mps_root: host folder of the MPS daemons; None for the agent's default.
        kubelet_root: kubelet's ``--root-dir``; None for the usual one.
        health: the environment variables that choose which errors count, with their values.
        namespace: the operator's namespace, if the file has it.
        driver_objects: the ClusterPolicy and the NVIDIADriver by which Tessera installs drivers; none if the hosts have
            theirs.
        drivers: the meaning of these objects.
        notices: settings without effect, or with another effect than upstream.
    """

    mig_strategy: MigStrategy
    sharing: NamedConfig = NamedConfig()
    layouts: NamedConfig = NamedConfig()
    mig_reboot: bool = False
    device_list_strategies: tuple[str, ...] | None = None
    device_id_strategy: str | None = None
    pass_device_specs: bool = False
    mps_root: str | None = None
    kubelet_root: str | None = None
    health: Mapping[str, str] = {}
    namespace: str = ""
    driver_objects: tuple[dict[str, Any], ...] = ()
    drivers: tuple[DriverPolicy, ...] = ()
    notices: tuple[Notice, ...] = ()

    @property
    def driver_root(self) -> str:
        """Host folder with the files of driver containers; empty for the usual place, and for no drivers."""
        return next((each.driver_root for each in self.drivers if each.driver_root != DRIVER_ROOT), "")
