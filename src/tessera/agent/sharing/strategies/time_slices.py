"""Time slices: the containers of a device take turns on it, as the driver schedules them.

The driver shares a device among processes by itself, so a share needs no process and no edits. Nothing limits the
memory of a share on the card; :mod:`tessera.agent.memory` watches it.
"""

from tessera.agent.sharing.strategies.whole import WholeDevice


class TimeSlices(WholeDevice):
    """See :class:`tessera.agent.sharing.strategies.interface.SharingStrategy`."""
