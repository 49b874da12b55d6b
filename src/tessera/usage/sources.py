"""Sources of GPU-hours for a report; the controller's record is one, a Prometheus another.

A source for users who see only some namespaces gives totals with their rows only, and no cards; reports take them as
they are (:func:`tessera.usage.report.make_report` with the namespaces).
"""

from typing import Protocol

from tessera.api.gpu_operator.settings_reader import SYSTEM_NAMESPACE
from tessera.errors import UserError
from tessera.kube.client.client import Client
from tessera.kube.client.errors import NotFound
from tessera.kube.resources import CONFIGMAPS
from tessera.usage.record_text import RECORD_KEY, RECORD_NAME, decode_record
from tessera.usage.report import Grouping, UsageTotals, totals_of_record


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
        """See :meth:`UsageSource.totals`; the record's last count ends the window."""
        where = f"ConfigMap {SYSTEM_NAMESPACE}/{RECORD_NAME}"
        try:
            found = await self._client.get(CONFIGMAPS, RECORD_NAME, SYSTEM_NAMESPACE)
        except NotFound:
            raise UserError(
                f"{where} does not exist: the controller writes it about two minutes after its first start; is Tessera"
                " installed (tessera doctor), and does its controller run?"
            ) from None
        text = found.data.get(RECORD_KEY, "")
        if not text:
            raise UserError(f"{where} has no key {RECORD_KEY}: delete it, and the controller begins anew")
        try:
            return totals_of_record(decode_record(text), begin)
        except ValueError as error:
            raise UserError(f"{where}: {error}; the controller sets it aside at its next start") from None
