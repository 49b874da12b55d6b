"""Numbers of examples of property tests: a quarter in ``make test``; all, and drawn anew, in ``make soak``."""

import os

#: True in ``make soak``.
SEARCHING = bool(os.environ.get("TESSERA_SEARCH"))
#: Examples of a property test that names no number of its own; hypothesis' default is 100.
DEFAULT = 100


def examples(number: int) -> int:
    """The number of examples to try: ``number`` in ``make soak``, a quarter of it but at least 10 in ``make test``."""
    return number if SEARCHING else max(10, number // 4)
