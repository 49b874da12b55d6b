"""Limits on the record of GPU-hours and on price lists."""

from tessera.limits import Limit

USAGE_RECORD = Limit(
    900 * 1024,
    "bytes",
    "the record of GPU-hours in its ConfigMap; the newest periods stay",
    "a ConfigMap has at most 1 MiB; a month of 250 rows in each period has 800 KiB",
)
USAGE_ROWS = Limit(
    250,
    "rows",
    "rows of an hour or a day in that record; the smallest of the namespace with the most rows are added up",
    "79 periods of 250 rows have 500 KiB",
)
USAGE_KEYS = Limit(
    1_000,
    "keys",
    "combinations of namespace, user, label and model in that record; the smallest are added up",
    "each is written once, with up to 300 bytes",
)
USAGE_MODELS = Limit(
    64,
    "models",
    "models of cards in an hour or a day of that record; others count as `(other)`",
    "a cluster has a few; a node that lies cannot add thousands",
)
USAGE_NODES = Limit(
    2_000,
    "nodes",
    "nodes in that record; the time of others while no controller runs is not counted",
    "each is written with some 50 bytes",
)
USAGE_NAME = Limit(
    63,
    "characters",
    "a namespace, a user, a label's value or a model in that record; the rest is cut",
    "a label's value has no more",
)
PRICE_LIST = Limit(
    64 * 1024,
    "bytes",
    "a price list",
    "a line for each model that exists has a tenth of it",
)
