"""The waits of the reference operator's order of steps, as values, so that each can be removed by itself.

Two more things are here, since they take seconds and are no work either: overlaps that the reference does not have, and
kubelet's own period, which both orders of steps have.

Sources: gpu-operator (assets of the driver's, the toolkit's and the validator's DaemonSets; validator's main), v23.6.1
to v26.7.0. A wait of 0 means that the program reacts at once.
"""

import msgspec


class ReferenceWaits(msgspec.Struct, frozen=True, kw_only=True):
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
        proves_driver: the driver is validated by itself before the toolkit begins; otherwise with the toolkit only.
        starts_plugin: what offers the cards is started once the toolkit is validated; otherwise it runs already, and
            offers them once everything is.
        publish_every: kubelet publishes what a node offers so often (its nodeStatusUpdateFrequency); None for at once.
            It is kubelet's, so both orders of steps have it.
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
    proves_driver: bool = True
    starts_plugin: bool = True
    publish_every: float | None = 10.0


#: The waits of the real operator.
REFERENCE = ReferenceWaits()
#: The same under a kubelet that publishes at once.
PUBLISHED_AT_ONCE = ReferenceWaits(publish_every=None)

#: A program that hears of a marker at once; not 0, since a loop without a wait would never let others go on.
AT_ONCE = 0.05


def remove_wait(*, new_node: bool, built: bool) -> list[tuple[str, ReferenceWaits]]:
    """The reference with one wait or obstacle after the other taken out, each on top of those before; by its name.

    What looks at intervals rounds what comes before it, so the last of them is taken out first. Kubelet, the very last,
    publishes at once in all steps.

    Args:
        new_node: nodes are new, so that features are discovered and images pulled.
        built: the driver is built on the node.
    """
    builds: list[_Step] = [("wait: Driver Toolkit polls every 10 s", {"builder_poll": 1.0})]
    fresh: list[_Step] = [
        ("wait: node feature discovery", {"discovery": False}),
        ("overlap: pulls begin before the node is Ready", {"after_ready": False}),
        ("overlap: one image instead of one an operand", {"separate_images": False}),
    ]
    steps: list[_Step] = [
        ("wait: validator and its clients poll every 5 s", {"validator_poll": AT_ONCE}),
        ("wait: toolkit polls every 5 s and sleeps 5 s", {"toolkit_poll": AT_ONCE, "toolkit_sleep": 0.0}),
        ("wait: driver's startup probe, 60 s and then every 10 s", {"probe_delay": 0.0, "probe_period": 1.0}),
        *(builds if built else ()),
        ("wait: a reconcile through all states", {"reconcile": False}),
        *(fresh if new_node else ()),
        ("overlap: the driver is proved once, with the toolkit", {"proves_driver": False}),
        ("overlap: the device plugin runs already, and is not started last", {"starts_plugin": False}),
    ]
    found, now = [], PUBLISHED_AT_ONCE
    for name, changes in steps:
        now = msgspec.structs.replace(now, **changes)
        found.append((name, now))
    return found


_Step = tuple[str, dict[str, float | bool]]
