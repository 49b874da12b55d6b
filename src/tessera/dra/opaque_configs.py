"""Opaque configurations of claims and classes: NVIDIA's ``resource.nvidia.com/v1beta1``, every field.

``GpuConfig`` is for whole cards and ``MigDeviceConfig`` for MIG devices; both say how the containers of a claim share
its devices: in time slices, or by an MPS daemon of their own. Each device has one configuration: of those that name its
request, or no request, and are of its kind, the last one counts; those of the claim come after those of the class.

Nothing is ignored: an unknown field, a kind that cannot be served (``VfioDeviceConfig``), or a value out of range is a
refusal with the field's path. Configurations for other drivers are theirs. Source: dra-driver-nvidia-gpu 0.4,
``api/nvidia.com/resource/v1beta1`` and ``cmd/gpu-kubelet-plugin/device_state.go``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.problems import FileRefused, ProblemCollector, join_path, quote_value
from tessera.dra.claims import DeviceConfig
from tessera.kube.quantity import integer_value, quantity_text
from tessera.text import one_line

API_VERSION = "resource.nvidia.com/v1beta1"
GPU_CONFIG, MIG_CONFIG, VFIO_CONFIG = "GpuConfig", "MigDeviceConfig", "VfioDeviceConfig"
TIME_SLICING, MPS = "TimeSlicing", "MPS"
INTERVALS = ("Default", "Short", "Medium", "Long")
#: Kind of configuration by the attribute ``type`` of a device.
_KINDS = {"gpu": GPU_CONFIG, "mig": MIG_CONFIG}
_MIB = 2**20


class ConfigRefused(ValueError):  # noqa: N818 - says what happened to the configuration
    """A configuration that cannot be served; the text names the field."""


class MpsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the MPS daemon of a claim.

    Attributes:
        thread_percent: default share of threads of each client, 0 to 100; None for the daemon's own default.
        pinned_mib: most memory of each client on each device, MiB; None without a limit.
        pinned_mib_by_device: the same of some devices, by index in the claim or by UUID.
        multi_user: clients of several users may use the daemon.
    """

    thread_percent: int | None = None
    pinned_mib: int | None = None
    pinned_mib_by_device: Mapping[str, int] = {}
    multi_user: bool = False


class DeviceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the containers of a claim share a device.

    Attributes:
        kind: ``GpuConfig`` or ``MigDeviceConfig``.
        strategy: ``TimeSlicing`` or ``MPS``; empty without a rule.
        interval: length of a time slice of a whole card; empty to leave it alone.
        mps: the daemon's settings, for ``MPS``.
    """

    kind: str
    strategy: str = ""
    interval: str = ""
    mps: MpsSettings | None = None


def settings_of(
    configs: Sequence[tuple[str, DeviceConfig]], driver: str, request: str, device_type: str
) -> DeviceSettings:
    """Returns the configuration of one device.

    Args:
        configs: place, for messages, and configuration: those of the class first, as in an allocation.
        driver: our driver's name.
        request: the request or ``request/alternative`` that the device fulfils.
        device_type: the attribute ``type`` of the device.

    Raises:
        ConfigRefused: a configuration for this driver cannot be read, or names a request with devices of another kind.
    """
    kind = _KINDS.get(device_type, GPU_CONFIG)
    found = DeviceSettings(kind=kind)
    for place, config in configs:
        settings = read_config(place, config, driver)
        if settings is None:
            continue
        named = request in config.requests or request.partition("/")[0] in config.requests
        if named and settings.kind != kind:
            text = f"is {settings.kind}, but request {request} has a device of type {device_type}, which takes {kind}"
            raise ConfigRefused(f"{place}.opaque.parameters.kind {text}")
        if settings.kind == kind and (named or not config.requests):
            found = settings
    return found


def check_configs(configs: Iterable[tuple[str, DeviceConfig]], driver: str) -> None:
    """Reads all configurations, so that a claim is refused before it is placed.

    Raises:
        ConfigRefused: one for this driver cannot be read, or asks for what no node does.
    """
    for place, config in configs:
        settings = read_config(place, config, driver)
        if settings is not None:
            _check_served(place, settings)


def check_share(place: str, settings: DeviceSettings) -> None:
    """Refuses a configuration of a share that its card's sharing does not follow.

    Raises:
        ConfigRefused: the strategy is MPS, whose daemon is the card's and not the claim's.
    """
    if settings.strategy == MPS:
        raise ConfigRefused(
            f"{place}: sharing.strategy is MPS, but a share has the strategy of its card: leave it out, or claim a"
            " whole card"
        )


def read_config(place: str, config: DeviceConfig, driver: str) -> DeviceSettings | None:
    """Returns a configuration; None for one of another driver.

    Args:
        place: the field, for messages: ``claim ns/name: spec.devices.config[0]``.
        config: the configuration.
        driver: our driver's name.

    Raises:
        ConfigRefused: it cannot be read or served.
    """
    if config.opaque is None:
        raise ConfigRefused(f"{place} has no opaque; other kinds of configuration are not known")
    if config.opaque.driver != driver:
        return None
    problems = ProblemCollector()
    settings = _Reader(problems).read(config.opaque.parameters)
    try:
        problems.raise_problems()
    except FileRefused as error:
        raise ConfigRefused(f"{place}.opaque.{one_line(error)}") from None
    return settings


def _check_served(place: str, settings: DeviceSettings) -> None:
    """Refuses a configuration that asks for what no node of Tessera does."""
    field = ""
    if settings.mps is not None and settings.kind == MIG_CONFIG:
        field = "strategy is MPS: a slice gets no MPS daemon; leave it out, or claim a whole card"
    elif settings.mps is not None and settings.mps.multi_user:
        field = "mpsConfig.multiUser is true: a daemon serves one user at a time; leave it out"
    elif settings.mps is not None and settings.mps.thread_percent == 0:
        field = "mpsConfig.defaultActiveThreadPercentage is 0: no client could compute; write 1 to 100"
    elif settings.interval not in ("", INTERVALS[0]):
        field = (
            f"timeSlicingConfig.interval is {settings.interval}: NVML cannot set it, and Tessera runs no nvidia-smi;"
            f" write {INTERVALS[0]}, or leave it out"
        )
    if field:
        raise ConfigRefused(f"{place}.opaque.parameters.sharing.{field}")


class _Reader:
    """Reads ``parameters``; mistakes go to the collector, with their paths."""

    def __init__(self, problems: ProblemCollector) -> None:
        self._problems = problems

    def read(self, parameters: Any) -> DeviceSettings:
        """Returns the settings."""
        path = "parameters"
        found = self._problems.free_mapping(parameters, path)
        version, kind = found.get("apiVersion"), found.get("kind")
        if version != API_VERSION:
            self._problems.add(f"{path}.apiVersion", f"must be {API_VERSION}, not {quote_value(version)}")
            return DeviceSettings(kind=GPU_CONFIG)
        if kind == VFIO_CONFIG:
            self._problems.add(f"{path}.kind", "is VfioDeviceConfig: cards are not given to virtual machines")
            return DeviceSettings(kind=GPU_CONFIG)
        name = self._problems.choice(kind, f"{path}.kind", (GPU_CONFIG, MIG_CONFIG))
        found = self._problems.mapping(found, path, ("apiVersion", "kind", "sharing"))
        if found.get("sharing") is None:
            return DeviceSettings(kind=name)
        return self._sharing(found["sharing"], f"{path}.sharing", name)

    def _sharing(self, value: Any, path: str, kind: str) -> DeviceSettings:
        known = ("strategy", "timeSlicingConfig", "mpsConfig")
        found = self._problems.mapping(value, path, known if kind == GPU_CONFIG else (known[0], known[2]))
        strategy = self._problems.choice(found.get("strategy"), f"{path}.strategy", (TIME_SLICING, MPS))
        slicing, mps = found.get("timeSlicingConfig"), found.get("mpsConfig")
        for name, held, wanted in (("timeSlicingConfig", slicing, TIME_SLICING), ("mpsConfig", mps, MPS)):
            if held is not None and strategy != wanted:
                self._problems.add(f"{path}.{name}", f"belongs to strategy {wanted}, and the strategy is {strategy}")
        if strategy == MPS:
            return DeviceSettings(kind=kind, strategy=MPS, mps=self._mps(mps, f"{path}.mpsConfig"))
        interval = self._interval(slicing, f"{path}.timeSlicingConfig") if kind == GPU_CONFIG else ""
        return DeviceSettings(kind=kind, strategy=TIME_SLICING, interval=interval)

    def _interval(self, value: Any, path: str) -> str:
        found = self._problems.mapping(value, path, ("interval",))
        if found.get("interval") is None:
            return INTERVALS[0]
        return self._problems.choice(found["interval"], f"{path}.interval", INTERVALS)

    def _mps(self, value: Any, path: str) -> MpsSettings:
        names = (
            "defaultActiveThreadPercentage",
            "defaultPinnedDeviceMemoryLimit",
            "defaultPerDevicePinnedMemoryLimit",
            "multiUser",
        )
        found = self._problems.mapping(value, path, names)
        percent, pinned, by_device, multi_user = (found.get(name) for name in names)
        percent_path = f"{path}.{names[0]}"
        threads = None if percent is None else self._problems.integer(percent, percent_path, 0)
        if threads is not None and threads > 100:
            self._problems.add(percent_path, f"must be 0 to 100, not {threads}")
        devices = self._problems.free_mapping(by_device, f"{path}.{names[2]}")
        return MpsSettings(
            thread_percent=threads,
            pinned_mib=None if pinned is None else self._memory(pinned, f"{path}.{names[1]}"),
            pinned_mib_by_device={
                key: self._memory(amount, join_path(f"{path}.{names[2]}", key)) for key, amount in devices.items()
            },
            multi_user=False if multi_user is None else self._problems.boolean(multi_user, f"{path}.{names[3]}"),
        )

    def _memory(self, value: Any, path: str) -> int:
        try:
            mib = integer_value(quantity_text(value)) // _MIB
        except ValueError as error:
            self._problems.add(path, str(error))
            return 0
        if mib < 1:
            self._problems.add(path, f"must be 1Mi or more, not {quote_value(value)}")
        return mib
