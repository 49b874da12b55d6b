"""Limits on text of others that a message, a log, a status or a terminal shows."""

from tessera.limits import Limit

ECHOED = Limit(
    200,
    "characters",
    "text of others that a message repeats",
    "a reader finds the mistake in less; a longer text hides the message around it",
)
LINE_SHOWN = Limit(
    4_000,
    "characters",
    "one line that a command prints",
    "about two screens of a terminal; longer lines of others scroll the answer away",
)
KEY_SHOWN = Limit(
    320,
    "characters",
    "a key of a file in a message",
    "Kubernetes' longest keys, a prefix of 253 and a name of 63 characters, fit",
)
VALUE_SHOWN = Limit(
    60,
    "characters",
    "a value of a file in a message",
    "the path beside it says where the value is",
)
FACT_SHOWN = Limit(
    1_000,
    "characters",
    "the verdict and each fact of `tessera why`",
    "a scheduler's message about a large cluster fits; a tenant's text cannot push the answer off the screen",
)
CONDITION_MESSAGE = Limit(
    1_000,
    "characters",
    "message of a condition that Tessera writes on a Node or a pod",
    "each write of the Node carries it; a file with many mistakes lists them all in `tessera config check`",
)
