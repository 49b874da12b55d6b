"""Limits on records, pages, reports and archives that Tessera keeps or reads back."""

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
LIFE_RECORD = Limit(
    700 * 1024,
    "bytes",
    "the history of leases in its ConfigMap; its oldest parts are not written beyond that; a larger one is not read",
    "a ConfigMap has at most 1 MiB",
)
QUEUE_PAGE = Limit(
    16 * 2**20,
    "bytes",
    "the controller's page `/queue`, as a command reads it",
    "5,000 pods have 3 MiB",
)
KUEUE_ANSWERS = Limit(
    200,
    "answers",
    "answers of Kueue's visibility API in one reading; places that they do not have are not shown",
    "50 namespaces with four queues each",
)
USAGE_RECORD = Limit(
    900 * 1024,
    "bytes",
    "the record of GPU-hours in its ConfigMap; the newest periods stay",
    "a ConfigMap has at most 1 MiB; a month of 250 rows in each period has 800 KiB",
)
PRICE_LIST = Limit(
    64 * 1024,
    "bytes",
    "a price list",
    "a line for each model that exists has a tenth of it",
)
ARCHIVE_SIZE = Limit(
    64 * 1024 * 1024,
    "bytes",
    "all files of a support archive together, before they are compressed",
    "text compresses to about a tenth, which still goes by mail",
)
ARCHIVE_OBJECTS = Limit(
    1_000,
    "objects",
    "objects of one kind in a support archive",
    "a case is about a few of them; the manifest counts the others",
)
ARCHIVE_PROCESSES = Limit(
    40,
    "pods",
    "pods of Tessera whose log and metrics a support archive has, those that are not ready first",
    "each is one request to its node; the manifest names the others",
)
ARCHIVE_VALUES = Limit(
    5_000,
    "values",
    "values of containers' environments that are searched for in the texts of a support archive",
    "each costs one search through all texts; the manifest tells if there were more",
)
ACCEPT_SMI_LOG = Limit(
    16 * 1024 * 1024,
    "bytes",
    "output of `nvidia-smi -q -x` that `tessera accept` reads",
    "a card has some 20 KB, and more with MIG devices and processes; 16 cards with 1,000 processes have less",
)
ACCEPT_DOCUMENT = Limit(
    16 * 1024 * 1024,
    "bytes",
    "a document of `tessera accept` that is read back, from a file or from its pod",
    "one of 16 cards has less than 1 MB",
)
