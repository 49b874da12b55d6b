"""The document of an acceptance: facts and results as JSON, without names of the machine unless the user wants them.

Names are replaced wherever they stand: UUIDs of cards and MIG devices, PCI addresses, the names of host and node. The
same name gets the same replacement, so one still sees which values belong together, and a PCI address keeps its form.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tessera.accept.checks import CheckResult
from tessera.accept.facts import Facts
from tessera.accept.mig_trial import MigTrial
from tessera.accept.pod_trial import PodTrial
from tessera.api.nodes.preflights import Preflight
from tessera.limits import Limit
from tessera.text import UserError

ACCEPT_DOCUMENT = Limit(
    16 * 1024 * 1024,
    "bytes",
    "a document of `tessera accept` that is read back, from a file or from its pod",
    "one of 16 cards has less than 1 MB",
)

#: Form of the document; a number that grows when a reader of the old form would misread the new one.
FORMAT = "tessera.dev/accept/v1"
ANONYMOUS = (
    "Models, sizes, versions, measured values and errors of the cards, PIDs of processes on them, and the structure of"
    " PCIe and NVLink. Numbers stand for UUIDs, PCI addresses, host name and node name. It has no serial numbers."
)
IDENTIFIED = "As an anonymous document, and the UUIDs, PCI addresses, host name and node name themselves."

_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_PCI = re.compile(r"\b(?:[0-9a-f]{4})?[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)


class DocumentError(UserError):
    """A file is no document of an acceptance."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """An acceptance.

    Attributes:
        format: :data:`FORMAT`.
        contains: what the document says of the machine, for a person who is about to send it.
        anonymous: names were replaced.
        facts: what was read.
        checks: what was found.
        mig: the trial of MIG on one card; ``None`` without one.
        preflight: the computations; ``None`` without them.
        pod: the trial of a pod; ``None`` without one.
    """

    format: str = FORMAT
    contains: str = ANONYMOUS
    anonymous: bool = True
    facts: Facts
    checks: tuple[CheckResult, ...]
    mig: MigTrial | None = None
    preflight: Preflight | None = None
    pod: PodTrial | None = None


def hide_names(document: Document) -> Document:
    """The document with numbers for names."""
    hide = _Replacements(document.facts)
    hidden = msgspec.convert(hide.replace(msgspec.to_builtins(document, str_keys=True)), Document, strict=False)
    return msgspec.structs.replace(hidden, anonymous=True, contains=ANONYMOUS)


def read_document(content: bytes, name: str) -> Document:
    """A document from a file.

    Args:
        content: of the file.
        name: of the file, for errors.

    Raises:
        DocumentError: it is too large, or no document of an acceptance.
    """
    if len(content) > ACCEPT_DOCUMENT:
        raise DocumentError(f"{name}: {len(content)} bytes; a document of tessera accept has {ACCEPT_DOCUMENT}")
    try:
        document = msgspec.json.decode(content, type=Document)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{name}: no document of tessera accept -o json: {error}") from error
    if document.format != FORMAT:
        raise DocumentError(f"{name}: the format is {document.format[:60]!r}; this version reads {FORMAT}")
    return document


class _Replacements:
    """Replaces names in every text of a document."""

    def __init__(self, facts: Facts) -> None:
        self._uuids: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        names = {facts.host.hostname: "host", facts.node.name if facts.node else "": "node"}
        self._names = {name: f"{kind}-1" for name, kind in names.items() if name}
        for card in facts.cards:  # a card's number is its index, as far as a UUID has one
            self.replace(card.uuid)
        for address in sorted({card.pci_bus_id for card in facts.cards}):
            self.replace(address)

    def replace(self, value: object) -> object:
        """The value with all its texts replaced; keys of mappings too."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self._text(str(key)): self.replace(each) for key, each in value.items()}
        if isinstance(value, Sequence):
            return [self.replace(each) for each in value]
        return value

    def _text(self, text: str) -> str:
        text = _PCI.sub(self._address, _UUID.sub(self._uuid, text))
        for name, instead in self._names.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", instead, text)
        return text

    def _uuid(self, match: re.Match[str]) -> str:
        return _number(self._uuids, match[0].lower(), lambda number: f"00000000-0000-0000-0000-{number:012d}")

    def _address(self, match: re.Match[str]) -> str:
        """Domains and buses by their order of appearance; device and function stay."""
        domain, bus, rest = match[0].lower().split(":")
        short = f"{domain[-4:]}:{bus}"
        known = _number(self._addresses, short, lambda number: f"{number // 256:04x}:{number % 256:02x}")
        return f"{'0' * (len(domain) - 4)}{known}:{rest}".upper() if len(domain) > 4 else f"{known}:{rest}"


def _number(known: dict[str, str], name: str, write: Callable[[int], str]) -> str:
    """The replacement of a name: the next number for one that is new."""
    if name not in known:
        known[name] = write(len(known) + 1)
    return known[name]
