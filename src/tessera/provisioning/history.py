"""Provisioning records as text, and the bounded history of them, which outlives autoscaled nodes.

Rules:

- One record is one line of JSON, so one broken line costs one record.
- Others can write annotations and ConfigMaps: the length of a text, its names and its numbers are bounded before use,
  and unknown keys and milestones are ignored.
- The history holds the newest records, bounded in number and in bytes. A record replaces an older one of its uid.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from tessera.limits import ECHOED, Limit
from tessera.nesting import decode_json
from tessera.provisioning.milestones import (
    PROVISIONING_ANNOTATION,
    Milestone,
    ProvisioningRecord,
    WorkloadRecord,
    WorkloadStep,
)

PROVISIONING_RECORD = Limit(
    4_096,
    "characters",
    "a node's annotation with the record of its start, and one line of the records in a ConfigMap",
    "a full record has less than 1 KiB",
)
RECORD_TEXT = Limit(
    512,
    "characters",
    "a name or an image in a record, as a node or a pod reports it; the rest is cut",
    "a whole image reference fits",
)

#: Most bytes: the ConfigMap of the records of starts; the newest stay. Half of a ConfigMap's limit, so that there is
#: room for unreadable lines.
PROVISIONING_BOOK = 512 * 1024

R = TypeVar("R", ProvisioningRecord, WorkloadRecord)

#: Bytes of lines that cannot be read and are preserved: enough to see what happened.
_BROKEN = 64 * 1024
#: Moments later than this (the year 5138) are invalid.
_LATEST = 1e11


def encode_record(record: ProvisioningRecord | WorkloadRecord) -> str:
    """A record as one line of JSON; moments to the millisecond."""
    rounded = {moment: round(seconds, 3) for moment, seconds in record.at.items()}
    if isinstance(record, ProvisioningRecord) and record.asked is not None:
        record = msgspec.structs.replace(record, asked=round(record.asked, 3))
    return msgspec.json.encode(msgspec.structs.replace(record, at=rounded)).decode()


def decode_record(text: str) -> ProvisioningRecord:
    """Decodes a node's record from the annotation or the history.

    Raises:
        ValueError: the text is too long or malformed; the message says where.
    """
    return _decode(text, ProvisioningRecord, Milestone)


def decode_workload(text: str) -> WorkloadRecord:
    """Decodes a pod's record from the history.

    Raises:
        ValueError: the text is too long or malformed; the message says where.
    """
    return _decode(text, WorkloadRecord, WorkloadStep)


def _decode(text: str, kind: type[R], moments: type[Enum]) -> R:
    if len(text) > PROVISIONING_RECORD:
        raise ValueError(
            f"record of {len(text):,} characters (annotation {PROVISIONING_ANNOTATION}); "
            f"{PROVISIONING_RECORD} are allowed"
        )
    try:
        found = decode_json(text, dict[str, Any])
        known = {each.value for each in moments}
        at = msgspec.convert(found.get("at", {}), dict[str, Any])
        found["at"] = {name: _moment(f"at.{name}", value) for name, value in at.items() if name in known}
        for name in ("asked", "lost", "replaced", "waits", "waited"):
            if found.get(name) is not None:
                found[name] = _moment(name, found[name])
        _check_lengths(found)
        return msgspec.convert(found, kind)
    except (msgspec.DecodeError, UnicodeEncodeError, ValueError) as error:
        raise ValueError(f"record of provisioning: {error}") from None


def _check_lengths(found: Mapping[str, Any]) -> None:
    for name, value in found.items():
        if isinstance(value, str) and len(value) > RECORD_TEXT:
            raise ValueError(f"{name} has {len(value):,} characters; {RECORD_TEXT} are allowed")
        if isinstance(value, str) and not value.isprintable():
            raise ValueError(f"{name} is {ascii(value)[:ECHOED]}; text that can be printed is expected")


def _moment(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LATEST:
        return float(value)
    raise ValueError(f"{name} is {str(value)[:ECHOED]!r}; seconds since 1970 are expected")


class BoundedHistory(Generic[R]):
    """The newest records of one kind, oldest first, by uid.

    Args:
        max_records: maximum number of records.
        max_bytes: maximum size of their text in bytes, line ends included.
    """

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._records: dict[str, R] = {}
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._records)

    def get(self, uid: str) -> R | None:
        """The record with this uid."""
        return self._records.get(uid)

    def values(self) -> tuple[R, ...]:
        """All records, oldest first."""
        return tuple(self._records.values())

    def put(self, record: R) -> bool:
        """Adds a record, in the place of an older one with its uid; returns True if anything changed."""
        if self._records.get(record.uid) == record:
            return False
        self._records[record.uid] = record
        self._sizes[record.uid] = len(encode_record(record).encode()) + 1
        while len(self._records) > self._max_records or sum(self._sizes.values()) > self._max_bytes:
            oldest = next(iter(self._records))
            del self._records[oldest], self._sizes[oldest]
        return True

    def encode(self) -> str:
        """One line for each record, oldest first."""
        return "".join(f"{encode_record(each)}\n" for each in self._records.values())


#: Name of the ConfigMap, and its keys.
RECORDS_NAME = "provisioning-records"
RECORDS_KEY = "records.jsonl"
WORKLOADS_KEY = "workloads.jsonl"
#: The lines that could not be read the last time, for people; Tessera does not read them back.
BROKEN_KEY = "unreadable.txt"


class ProvisioningHistory:
    """The content of the ConfigMap of records.

    Args:
        max_records: maximum number of nodes, and of pods; by default as many as fit.

    Attributes:
        nodes: records of nodes.
        workloads: records of pods.
        broken: lines that could not be read, cut; empty if there are none.
    """

    def __init__(self, max_records: int = PROVISIONING_BOOK) -> None:
        # A pod's record is shorter and rarely read, so nodes get the larger part of the space.
        self.nodes: BoundedHistory[ProvisioningRecord] = BoundedHistory(max_records, PROVISIONING_BOOK * 5 // 8)
        self.workloads: BoundedHistory[WorkloadRecord] = BoundedHistory(max_records, PROVISIONING_BOOK * 2 // 8)
        self.broken = ""

    def load(self, data: Mapping[str, str]) -> list[str]:
        """Adds the records of a ConfigMap.

        Returns:
            A sentence for each line that could not be read.
        """
        faults, broken = [], []
        for key, number, line in _lines(data):
            try:
                if key == RECORDS_KEY:
                    self.nodes.put(decode_record(line))
                else:
                    self.workloads.put(decode_workload(line))
            except ValueError as error:
                faults.append(f"{key}, line {number}: {error}")
                broken.append(line)
        self.broken = "\n".join(broken).encode()[:_BROKEN].decode(errors="ignore")
        return faults

    def config_map_data(self) -> dict[str, str]:
        """The data to write to the ConfigMap."""
        broken = {BROKEN_KEY: self.broken} if self.broken else {}
        return {RECORDS_KEY: self.nodes.encode(), WORKLOADS_KEY: self.workloads.encode(), **broken}


def _lines(data: Mapping[str, str]) -> Iterable[tuple[str, int, str]]:
    for key in (RECORDS_KEY, WORKLOADS_KEY):
        for number, line in enumerate(data.get(key, "").split("\n"), start=1):
            if line.strip():
                yield key, number, line
