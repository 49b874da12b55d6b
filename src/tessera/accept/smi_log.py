"""Reads the XML log of ``nvidia-smi -q -x``: the elements of each card that are compared with NVML.

The log is read as a stream, without its document type and without entities, and only the named elements are kept. So a
log of any size or form costs no more than its bytes, which the caller bounds.
"""

from collections.abc import Mapping, Sequence
from xml.parsers.expat import ExpatError, ParserCreate

from tessera.accept.facts import SmiCard

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
