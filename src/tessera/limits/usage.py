"""Limits on the record of GPU-hours and on price lists."""

from tessera.limits import Limit

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
