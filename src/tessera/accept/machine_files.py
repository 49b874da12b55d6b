"""Reads the machine around the cards: ``/sys``, ``/proc``, ``/dev`` and the output of ``nvidia-smi``.

Of the XML log of ``nvidia-smi -q -x`` it reads the elements of each card that are compared with NVML.

The log is read as a stream, without its document type and without entities, and only the named elements are kept. So a
log of any size or form costs no more than its bytes, which the caller bounds.
"""

import platform
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Timer
from xml.parsers.expat import ExpatError, ParserCreate

import msgspec

from tessera import __version__
from tessera.accept.facts import DriverVersions, HostFacts, NvidiaRuntime, PciFunction, SmiCard
from tessera.limits import Limit

#: Elements of a card's log, by the name under which they are kept: the first that has a value counts. The paths changed
#: with the driver's branch (nvsmi_device_v10 to v12: ``power_readings`` became ``gpu_power_readings`` with R530).
ELEMENTS: Mapping[str, Sequence[str]] = {
    "product_name": ("product_name",),
    "uuid": ("uuid",),
    "minor_number": ("minor_number",),
    "memory_total": ("fb_memory_usage/total",),
    "memory_used": ("fb_memory_usage/used",),
    "gpu_utilization": ("utilization/gpu_util",),
    "memory_utilization": ("utilization/memory_util",),
    "temperature": ("temperature/gpu_temp",),
    "memory_temperature": ("temperature/memory_temp",),
    "slowdown_temperature": ("temperature/gpu_temp_slow_threshold",),
    "shutdown_temperature": ("temperature/gpu_temp_max_threshold",),
    "power": ("gpu_power_readings/average_power_draw", "gpu_power_readings/power_draw", "power_readings/power_draw"),
    "power_limit": ("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit"),
    "sm_clock": ("clocks/sm_clock",),
    "memory_clock": ("clocks/mem_clock",),
    "pcie_replays": ("pci/replay_counter",),
    "rows_remapped_correctable": ("remapped_rows/remapped_row_corr",),
    "rows_remapped_uncorrectable": ("remapped_rows/remapped_row_unc",),
    "row_remap_pending": ("remapped_rows/remapped_row_pending",),
    "row_remap_failed": ("remapped_rows/remapped_row_failure",),
}
#: Texts of elements without a value.
_NOTHING = ("", "N/A", "[N/A]", "Not Supported", "Requested functionality has been deprecated")
#: Most characters of an element, and most nested elements (the deepest of the log are six).
_TEXT, _DEPTH = 200, 32


class SmiLogError(ValueError):
    """The text is no log of ``nvidia-smi``."""


def parse_smi_log(log: bytes) -> tuple[SmiCard, ...]:
    """The cards of a log, in its order.

    Raises:
        SmiLogError: it is no XML, declares entities, or is nested too deeply.
    """
    reader = _LogReader()
    parser = ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.EntityDeclHandler = _refuse_entity
    try:
        parser.Parse(log, True)
    except ExpatError as error:
        raise SmiLogError(f"the output of nvidia-smi -q -x is no XML: {error}") from error
    return tuple(reader.cards)


def _refuse_entity(name: str, *_: object) -> None:
    raise SmiLogError(f"the output of nvidia-smi -q -x declares the entity {name[:40]!r}; it never does")


class _LogReader:
    """Collects the wanted elements of each card."""

    def __init__(self) -> None:
        self.cards: list[SmiCard] = []
        self._path: list[str] = []
        self._address = ""
        #: Text of the current card's wanted elements by path.
        self._texts: dict[str, str] = {}
        self._wanted = {path for paths in ELEMENTS.values() for path in paths}

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        if len(self._path) > _DEPTH:
            raise SmiLogError(f"the output of nvidia-smi -q -x nests more than {_DEPTH} elements")
        if self._path == ["nvidia_smi_log", "gpu"]:
            self._address, self._texts = attributes.get("id", "")[:_TEXT], {}

    def text(self, text: str) -> None:
        path = "/".join(self._path[2:])
        if path in self._wanted:
            self._texts[path] = (self._texts.get(path, "") + text)[:_TEXT]

    def end(self, _name: str) -> None:
        if self._path == ["nvidia_smi_log", "gpu"]:
            self.cards.append(SmiCard(pci_bus_id=self._address, values=dict(self._values())))
        self._path.pop()

    def _values(self) -> list[tuple[str, str]]:
        found = []
        for name, paths in ELEMENTS.items():
            texts = [self._texts.get(path, "").strip() for path in paths]
            found += [(name, text) for text in texts if text not in _NOTHING][:1]
        return found


ACCEPT_SMI_LOG = Limit(
    16 * 1024 * 1024,
    "bytes",
    "output of `nvidia-smi -q -x` that `tessera accept` reads",
    "a card has some 20 KB, and more with MIG devices and processes; 16 cards with 1,000 processes have less",
)

#: PCI vendor of NVIDIA, and the classes of its cards: display and 3D controllers (PCI-SIG, class codes).
_VENDOR, _CLASSES = 0x10DE, (0x0300, 0x0302)
#: Transfer rate of a lane by PCIe generation, GT/s, as the kernel writes it (drivers/pci/probe.c, pci_speed_string).
_GENERATIONS = {
    "2.5": 1,
    "5": 2,
    "5.0": 2,
    "8": 3,
    "8.0": 3,
    "16": 4,
    "16.0": 4,
    "32": 5,
    "32.0": 5,
    "64": 6,
    "64.0": 6,
}
_VERSION = re.compile(r"\b\d{3,4}\.\d+(?:\.\d+)?\b")
_DEVICE = re.compile(r"nvidia(\d+)")
#: Seconds that nvidia-smi may take: slow on many cards without persistence mode.
_SMI_SECONDS = 60.0
_LIBRARY = "libnvidia-ml.so."


class FactError(Exception):
    """A fact cannot be read; the text is the reason."""


class MachineFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The places that are read.

    Attributes:
        sys: the host's ``/sys``.
        proc: the host's ``/proc``.
        dev: the host's ``/dev``.
        runtime: settings of NVIDIA's container runtime.
        smi: how ``nvidia-smi`` is called.
    """

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    runtime: Path = Path("/etc/nvidia-container-runtime/config.toml")
    smi: Sequence[str] = ("nvidia-smi",)

    def pci_functions(self) -> tuple[PciFunction, ...]:
        """The cards that the kernel sees on PCI, by address.

        Raises:
            FactError: ``/sys`` has no PCI devices.
        """
        folder = self.sys / "bus/pci/devices"
        try:
            found = sorted(folder.iterdir())
        except OSError as error:
            raise FactError(f"{folder}: {error.strerror}") from error
        return tuple(_pci_function(path) for path in found if _is_card(path))

    def device_minors(self) -> tuple[int, ...]:
        """``N`` of each ``/dev/nvidiaN``.

        Raises:
            FactError: the folder cannot be read.
        """
        try:
            names = [path.name for path in self.dev.iterdir()]
        except OSError as error:
            raise FactError(f"{self.dev}: {error.strerror}") from error
        return tuple(sorted(int(match[1]) for name in names if (match := _DEVICE.fullmatch(name))))

    def driver_versions(self, library: str) -> DriverVersions:
        """The driver's version by its parts; ``library`` is what NVML says."""
        return DriverVersions(
            library=library,
            library_file=_loaded_library(_text(Path("/proc/self/maps"))),
            module=_text(self.sys / "module/nvidia/version").strip(),
            running=next(iter(_VERSION.findall(_text(self.proc / "driver/nvidia/version"))), ""),
        )

    def nvlink_off(self) -> bool:
        """The driver was loaded with all NVLinks off."""
        return "NvLinkDisable: 1" in _text(self.proc / "driver/nvidia/params").splitlines()

    def nvidia_runtime(self) -> NvidiaRuntime:
        """The settings of NVIDIA's container runtime.

        Raises:
            FactError: there is no such file, or it is not TOML.
        """
        try:
            found = tomllib.loads(self.runtime.read_text())
        except OSError as error:
            raise FactError(
                f"{self.runtime}: {error.strerror}; where Tessera installs the toolkit, it makes this file right"
            ) from error
        except ValueError as error:
            raise FactError(f"{self.runtime}: {error}") from error
        own = found.get("nvidia-container-runtime")
        return NvidiaRuntime(
            obeys_images=found.get("accept-nvidia-visible-devices-envvar-when-unprivileged") is not False,
            reads_mounts=found.get("accept-nvidia-visible-devices-as-volume-mounts") is True,
            mode=str(own.get("mode", "auto")) if isinstance(own, dict) else "auto",
        )

    def smi_log(self) -> tuple[SmiCard, ...]:
        """The cards as ``nvidia-smi`` shows them now.

        Raises:
            FactError: the tool is not there, fails, hangs, or writes something else.
        """
        return _parse(self._run_smi())

    def _run_smi(self) -> bytes:
        command = [*self.smi, "-q", "-x"]
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)  # noqa: S603 - no shell
        except OSError as error:
            raise FactError(f"{command[0]}: {error.strerror}") from error
        timer = Timer(_SMI_SECONDS, process.kill)
        timer.start()
        with process:
            output = (process.stdout.read(ACCEPT_SMI_LOG + 1)) if process.stdout else b""
            if len(output) > ACCEPT_SMI_LOG:
                process.kill()
            status = process.wait()
            timer.cancel()
        if len(output) > ACCEPT_SMI_LOG:
            raise FactError(f"{command[0]} writes too much; it may have {ACCEPT_SMI_LOG}")
        if status:
            raise FactError(f"{' '.join(command)} ended with status {status}")
        return output


def host_facts() -> HostFacts:
    """This machine and the versions on it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        binding = version("nvidia-ml-py")
    except PackageNotFoundError:
        binding = ""
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        system = ""
    return HostFacts(
        hostname=platform.node(),
        kernel=platform.release(),
        architecture=platform.machine(),
        system=system,
        tessera=__version__,
        binding=binding,
    )


def _parse(log: bytes) -> tuple[SmiCard, ...]:
    try:
        return parse_smi_log(log)
    except ValueError as error:
        raise FactError(str(error)) from error


def _is_card(path: Path) -> bool:
    return _number(path / "vendor") == _VENDOR and _number(path / "class") >> 8 in _CLASSES


def _pci_function(path: Path) -> PciFunction:
    slot = path.resolve().parent  # the bridge above the card, which has the slot's limits
    generations = [_generation(each / "max_link_speed") for each in (path, slot)]
    lanes = [_number(each / "max_link_width") for each in (path, slot)]
    return PciFunction(
        address=path.name,
        device=f"0x{_number(path / 'device'):04X}{_number(path / 'vendor'):04X}",
        generation=_generation(path / "current_link_speed"),
        most_generation=min(filter(None, generations), default=0),
        lanes=_number(path / "current_link_width"),
        most_lanes=min(filter(None, lanes), default=0),
    )


def _generation(path: Path) -> int:
    return _GENERATIONS.get(_text(path).partition(" ")[0], 0)


def _number(path: Path) -> int:
    """A number of a file of ``/sys``; 0 if it has none."""
    try:
        return int(_text(path), 0)
    except ValueError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _loaded_library(maps: str) -> str:
    """Version in the name of the loaded library of NVML."""
    for line in maps.splitlines():
        name = line.rpartition("/")[2]
        if name.startswith(_LIBRARY) and (match := _VERSION.fullmatch(name.removeprefix(_LIBRARY))):
            return match[0]
    return ""
