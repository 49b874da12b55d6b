"""Limits on a support archive: it is sent by mail, and tenants and nodes write much of what it holds."""

from tessera.limits import Limit

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
