"""The numbers that decide when a fault of a card begins and ends."""

import msgspec

#: Number of returns that double the quiet time; further ones would make it overflow.
MOST_DOUBLED = 64


class Hysteresis(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that decide when a fault begins and ends.

    Attributes:
        clean_probes: clean probes in a row that end a fault.
        quiet: seconds without the error that must have passed as well.
        longest_quiet: upper limit in seconds of ``quiet``, which grows with each return of the error.
        memory: seconds after its end in which a fault that comes again counts as returned.
        failed_probes: failed probes in a row that withhold a card.
    """

    clean_probes: int = 3
    quiet: float = 30.0
    longest_quiet: float = 960.0
    memory: float = 3600.0
    failed_probes: int = 3

    def quiet_time(self, returns: int) -> float:
        """Seconds without the error that must have passed, for a fault that came back ``returns`` times."""
        return min(self.quiet * 2.0 ** min(returns, MOST_DOUBLED), self.longest_quiet)
