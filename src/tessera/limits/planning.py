"""Limits on the work of one decision of the controller, and on results that it caches for the next one."""

from tessera.limits import Limit

BATCH_PODS = Limit(
    1_000,
    "pods",
    "waiting pods that one step of the controller plans together",
    "pods that are created together are packed together; more of them are planned in further steps",
)
DECISION_STEPS = Limit(
    40_000,
    "steps",
    "checks in one step of the controller's planning, a check being one node asked about one pod",
    "up to 0.3 s of CPU; what is left is planned in the next step, after the lease is renewed and events are read",
)
CHECKED_PODS = Limit(
    1_000,
    "pods",
    "pods of one Workload of Kueue, and of all that it has just admitted, in one packing test",
    "as many as one step plans together; further ones are placed when there is room",
)
RESERVATIONS = Limit(
    16,
    "reservations",
    "waiting pods for which slots are kept at the same time; a gang counts as one",
    "each is applied to every decision; the pods behind them get theirs as these start",
)
RESERVATION_CARDS = Limit(
    512,
    "cards",
    "cards among which the place that empties soonest is sought, nodes with the most free slots first",
    "about 10 ms; so many cards have a place that empties soon",
)
RESERVATION_SEARCHES = Limit(
    4,
    "searches",
    "searches for such a place in one decision",
    "they take as long as the decision; further pods are searched for in the next decisions",
)
RESERVATION_CANDIDATES = Limit(
    16,
    "pods",
    "pods of one queue, the first in its order, that may get its reservation",
    "pods without any possible place may stand first; pods behind these wait without a reservation",
)
QUEUE_WEIGHT = Limit(
    1_000,
    "units of weight",
    "weight of a Queue",
    "a share a thousand times that of another is a mistake in the unit",
)
QUEUE_NAMESPACES = Limit(
    1_000,
    "namespaces",
    "namespaces that a Queue lists",
    "more are written as *; the list is read at each change of the object",
)
QUEUE_MODELS = Limit(
    64,
    "models",
    "models of cards in the usage of a Queue's status, those with the most",
    "a cluster has a few; a node that lies cannot add thousands",
)
NEIGHBOUR_STEPS = Limit(
    30_000,
    "steps",
    "comparisons for one pod's rules about other pods, each time that they are applied",
    "some 30 ms; a pod of 200 workloads with 50,000 pods takes 1,300; a rule beyond it is left to the scheduler",
)
EXPLAINED_STEPS = Limit(
    40_000,
    "steps",
    "steps of these searches for all pods of one decision",
    "they may not take longer than the decision; beyond it reasons say that several pods would have to end",
)
CARD_MODELS = Limit(
    256,
    "tables",
    "different tables of MIG profiles that the controller caches besides those in use",
    "a hostile node may write a new table each time; real clusters have a few",
)
CARD_STATES = Limit(
    65536,
    "states",
    "states of a card for which the value of the free slots is cached, for one table of profiles",
    "real cards have a few hundred; profile names that pods and records invent must not fill the memory",
)
