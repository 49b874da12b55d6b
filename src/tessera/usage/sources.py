"""Sources of GPU-hours for a report; the controller's record is one, a Prometheus another.

A source for users who see only some namespaces gives totals with their rows only, and no cards; reports take them as
they are (:func:`tessera.usage.report.make_report` with the namespaces).
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from tessera.api.gpu_operator.settings_reader import SYSTEM_NAMESPACE
from tessera.clock import rfc3339
from tessera.errors import UserError
from tessera.kube.client.client import Client
from tessera.kube.client.errors import NotFound
from tessera.kube.resources import CONFIGMAPS
from tessera.text import age
from tessera.usage.record_text import RECORD_KEY, RECORD_NAME, decode_record
from tessera.usage.report import Grouping, UsageTotals, totals_of_record

#: Seconds by which the record may end earlier than the window without a note.
_SHORT_LAG = 60.0
#: Seconds by which it ends earlier at most while the controller counts each minute and writes every five.
_USUAL_LAG = 420.0


class UsageSource(Protocol):
    """Knows GPU-hours of the past."""

    async def totals(self, begin: float, end: float, grouping: Grouping) -> UsageTotals:
        """The totals of a window, with owners as far as the grouping needs them.

        Raises:
            UserError: the source has none; the text says why and what to do.
            Forbidden: the user may not read it.
        """
        ...


class RecordSource:
    """The controller's record.

    Args:
        client: the user's client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def totals(self, begin: float, end: float, grouping: Grouping) -> UsageTotals:  # noqa: ARG002 - all of them
        """See :meth:`UsageSource.totals`; the record's last count ends the window, and a note says so."""
        where = f"ConfigMap {SYSTEM_NAMESPACE}/{RECORD_NAME}"
        try:
            found = await self._client.get(CONFIGMAPS, RECORD_NAME, SYSTEM_NAMESPACE)
        except NotFound:
            raise UserError(
                f"{where} does not exist: the controller first writes it about two minutes after its first start; is"
                " Tessera installed (tessera doctor), and does its controller run?"
            ) from None
        text = found.data.get(RECORD_KEY, "")
        if not text:
            raise UserError(f"{where} has no key {RECORD_KEY}: delete it, and the controller begins anew")
        try:
            found_totals = totals_of_record(decode_record(text), begin)
        except ValueError as error:
            raise UserError(f"{where}: {error}; the controller sets it aside at its next start") from None
        return msgspec.structs.replace(found_totals, notes=(*found_totals.notes, *record_lag(found_totals.end, end)))


def record_lag(until: float, end: float) -> Sequence[str]:
    """A note that the record ends before the window; the controller writes it every few minutes."""
    late = end - until
    if late < _SHORT_LAG:
        return ()
    text = f"the record reaches until {rfc3339(until)}, {age(late)} before the end of the window; the controller writes"
    if late <= _USUAL_LAG:
        return (f"{text} it every five minutes",)
    return (f"{text} it every five minutes while it runs: see tessera doctor",)
