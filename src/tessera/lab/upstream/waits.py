"""The waits of the reference operator's order of steps, as values, so that each can be taken out by itself.

Sources: gpu-operator (assets of the driver's, the toolkit's and the validator's DaemonSets; validator's main), v23.6.1
to v26.7.0. A wait of 0 stands for hearing of it at once.
"""

import msgspec


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds.

    Attributes:
        probe_delay: the driver's startup probe begins so late.
        probe_period: and asks so often.
        toolkit_poll: the toolkit's container looks for the driver's marker so often.
        toolkit_sleep: and sleeps so long once it has found it.
        validator_poll: the validator and its clients look for markers so often.
        builder_poll: the Driver Toolkit's container looks for work so often.
        discovery: node feature discovery is waited for.
        after_ready: pods are started once the node has a network; otherwise with the host's, before.
        separate_images: each operand has an image of its own; otherwise they share one.
        reconcile: the operator goes through all its states before a change counts.
    """

    probe_delay: float = 60.0
    probe_period: float = 10.0
    toolkit_poll: float = 5.0
    toolkit_sleep: float = 5.0
    validator_poll: float = 5.0
    builder_poll: float = 10.0
    discovery: bool = True
    after_ready: bool = True
    separate_images: bool = True
    reconcile: bool = True


#: As the operator is.
REFERENCE = Waits()

#: A program that hears of a marker at once; not 0, since a loop without a wait would never let others go on.
AT_ONCE = 0.05


def without() -> list[tuple[str, Waits]]:
    """The reference with one wait or obstacle after the other taken out, each on top of those before; by its name."""
    steps: list[tuple[str, dict[str, float | bool]]] = [
        ("wait: driver's startup probe, 60 s and then every 10 s", {"probe_delay": 0.0, "probe_period": 1.0}),
        ("wait: toolkit polls every 5 s and sleeps 5 s", {"toolkit_poll": AT_ONCE, "toolkit_sleep": 0.0}),
        ("wait: validator and its clients poll every 5 s", {"validator_poll": AT_ONCE}),
        ("wait: Driver Toolkit polls every 10 s", {"builder_poll": 1.0}),
        ("wait: node feature discovery", {"discovery": False}),
        ("wait: a reconcile through all states", {"reconcile": False}),
        ("overlap: pulls begin before the node is Ready", {"after_ready": False}),
        ("overlap: one image instead of one an operand", {"separate_images": False}),
    ]
    found, now = [], REFERENCE
    for name, changes in steps:
        now = msgspec.structs.replace(now, **changes)
        found.append((name, now))
    return found
