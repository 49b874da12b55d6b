"""Limits on provisioning records, on the reports and metrics made of them, and on `tessera autoscaler`."""

from tessera.limits import Limit

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
SAMPLE_ROWS = Limit(
    100_000,
    "rows",
    "rows of a file of start times for `advise`, and records that are read of a cluster",
    "years of an autoscaler's work; each is sorted",
)
