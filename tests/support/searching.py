"""How far property tests and random histories search: a first look in ``make test``, all and drawn anew in ``soak``."""

import os

#: True in ``make soak``.
SEARCHING = bool(os.environ.get("TESSERA_SEARCH"))
#: Examples of a property test that names no number of its own; hypothesis' default is 100.
DEFAULT = 100


def examples(number: int) -> int:
    """The number of examples to try: ``number`` in ``make soak``, at most 10 in ``make test``."""
    return number if SEARCHING else min(10, number)


def steps(number: int) -> int:
    """The length of a random history: ``number`` in ``make soak``, a tenth of it in ``make test``."""
    return number if SEARCHING else number // 10
