"""Limits on the forecast of starts: the history of leases, the simulation, and what is written about waiting pods."""

from tessera.limits import Limit

LIFE_RECORD = Limit(
    700 * 1024,
    "bytes",
    "that history in its ConfigMap; its oldest parts are not written beyond that; a larger one is not read",
    "a ConfigMap has at most 1 MiB",
)
QUEUE_PAGE = Limit(
    16 * 2**20,
    "bytes",
    "that page, as a command reads it",
    "5,000 pods have 3 MiB",
)
KUEUE_ANSWERS = Limit(
    200,
    "answers",
    "answers of Kueue's visibility API in one reading; places that they do not have are not shown",
    "50 namespaces with four queues each",
)
