"""Reads records from files in all supported forms. Pure.

Records: lines of JSON as in the ConfigMap, the ConfigMap itself as kubectl prints it (YAML or JSON), a list of records,
or the output of ``tessera provisioning report -o json``.

Others write these files. So a file with more characters than `REPORT_TEXT` is refused, and so is YAML whose aliases
would expand to a very large document; the check runs before the expansion.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from tessera.api.documents import load_document
from tessera.api.problems import FileRefused
from tessera.limits import Limit
from tessera.nesting import TooDeepError, decode_json
from tessera.provisioning.history import RECORDS_KEY, WORKLOADS_KEY, decode_record, decode_workload
from tessera.provisioning.milestones import ProvisioningRecord, WorkloadRecord

REPORT_TEXT = Limit(
    16 * 2**20,
    "characters",
    "a file of provisioning records or results",
    "more than 10,000 nodes with a record each",
)
REPORT_RECORD = Limit(
    10_000,
    "values and characters",
    "one record of such a file",
    "a full record has less than a tenth of it",
)

_TOO_DEEP = "is nested too deeply to be records"


def read_records(text: str, name: str) -> tuple[ProvisioningRecord, ...]:
    """The records in a file.

    Args:
        text: its content.
        name: name of the file, for messages.

    Raises:
        ValueError: the file has no records, or one is broken; the text names file, line and mistake.
    """
    if len(text) > REPORT_TEXT:
        raise ValueError(f"{name}: has {len(text):,} characters; {REPORT_TEXT} are allowed, give fewer records")
    found = []
    for place, line in _lines(text, name):
        try:
            found.append(decode_record(line))
        except ValueError as error:
            raise ValueError(f"{name}, {place}: {error}") from None
    return tuple(found)


def read_workloads(text: str, name: str) -> tuple[WorkloadRecord, ...]:
    """The records of pods in a file; only the ConfigMap and the output of ``-o json`` contain any.

    Raises:
        ValueError: one of them is broken.
    """
    loaded = _load(text, name)
    if not isinstance(loaded, dict):
        return ()
    data = loaded.get("data")
    kept = data.get(WORKLOADS_KEY) if isinstance(data, dict) else None
    listed = loaded.get("workloads")
    lines = _number_lines(kept) if isinstance(kept, str) else []
    if isinstance(listed, list):
        lines = _lines_of(listed, "workload", name)
    found = []
    for place, line in lines:
        try:
            found.append(decode_workload(line))
        except ValueError as error:
            raise ValueError(f"{name}, {place}: {error}") from None
    return tuple(found)


def _lines(text: str, name: str) -> Iterable[tuple[str, str]]:
    loaded = _load(text, name)
    if loaded is None:
        return _number_lines(text)
    if isinstance(loaded, dict) and "node" in loaded:
        return [("line 1", text)]
    return _list_entries(loaded, name)


def _load(text: str, name: str) -> Any:
    """The file as one value; None if it is several lines of JSON."""
    try:
        return decode_json(text)
    except TooDeepError:
        raise ValueError(f"{name}: {_TOO_DEEP}") from None
    except msgspec.DecodeError:
        return None if text.lstrip().startswith("{") else _yaml(text, name)


def _number_lines(text: str) -> list[tuple[str, str]]:
    return [(f"line {number}", line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _list_entries(loaded: Any, name: str) -> list[tuple[str, str]]:
    data = loaded.get("data") if isinstance(loaded, dict) else None
    if isinstance(data, dict) and isinstance(data.get(RECORDS_KEY), str):
        return [(f"{RECORDS_KEY}, {place}", line) for place, line in _number_lines(data[RECORDS_KEY])]
    records = loaded.get("records") if isinstance(loaded, dict) else loaded
    if not isinstance(records, list):
        raise ValueError(  # noqa: TRY004 - the file is wrong, not the call
            f"{name}: holds no records; give the ConfigMap provisioning-records (kubectl get configmap"
            " -n tessera-system provisioning-records -o yaml), lines of JSON, or what -o json printed"
        )
    return _lines_of(records, "record", name)


def _lines_of(values: list[Any], kind: str, name: str) -> list[tuple[str, str]]:
    lines, characters = [], 0
    for number, each in enumerate(values, start=1):
        line = _line(each, name)
        characters += len(line)
        if characters > REPORT_TEXT:
            raise ValueError(f"{name}: expands to too much: {REPORT_TEXT} are allowed; give fewer records")
        lines.append((f"{kind} {number}", line))
    return lines


def _line(value: Any, name: str) -> str:
    left, todo = int(REPORT_RECORD), [value]
    while todo:
        each = todo.pop()
        parts = [*each, *each.values()] if isinstance(each, dict) else each if isinstance(each, (list, tuple)) else ()
        left -= len(each) if isinstance(each, (str, bytes)) else 1 + len(parts)
        if left < 0:
            raise ValueError(f"{name}: has a record that is too long: {REPORT_RECORD} are allowed")
        todo += parts
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, RecursionError):  # YAML has sets, and objects that contain themselves
        raise ValueError(f"{name}: has an entry that is no record") from None


def _yaml(text: str, name: str) -> Any:
    try:
        return load_document(text, limited=False)
    except FileRefused as error:
        raise ValueError(f"{name}: {' '.join(str(error).split())[:200]}") from None
