"""Limits on the work of one decision of the controller, and on results that it caches for the next one."""

from tessera.limits import Limit

BATCH_PODS = Limit(
    1_000,
    "pods",
    "waiting pods that one step of the controller plans together",
    "pods that are created together are packed together; more of them are planned in further steps",
)
BATCH_RULES = Limit(
    1_000,
    "rules",
    "rules about other pods and host ports of the pods that one step of the controller plans together",
    "as many as pods, so that replicas with a rule each are packed together; pods beyond are planned in further steps",
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
REMEMBERED_AGES = Limit(
    10_000,
    "pods",
    "pods that left while they waited, whose age the next pod of their owner takes over",
    "as many as a large queue has; of more, the namespace with the most loses one",
)
REMEMBERED_AGES_OF_NAMESPACE = Limit(
    1_000,
    "pods",
    "the same of one namespace",
    "one namespace cannot push out the ages of all others; of more, its owner whose pods left first loses the youngest",
)
PRICED_CONSTRAINTS = Limit(
    64,
    "constraints",
    "different constraints on nodes, the most frequent, whose pods count for prices and the mix of requests",
    "teams pin pods in a few ways; prices and mix only order the nodes",
)
RESERVATIONS = Limit(
    16,
    "reservations",
    "waiting pods for which slots are kept at the same time; a gang counts as one",
    "each is applied to every decision; the pods behind them get theirs as these start",
)
GANG_RESERVED_PODS = Limit(
    256,
    "pods",
    "pods of one gang for which slots are kept together; a larger gang waits without",
    "each adds about 20 microseconds to a decision; as many as 32 nodes of 8 cards hold",
)
RESERVED_PODS = Limit(
    1_024,
    "pods",
    "pods with recorded reservations that a new controller takes over, those of gangs each by itself",
    "16 gangs have more at most, whose last ones then make theirs anew",
)
RESERVED_PERCENT = Limit(
    25,
    "percent",
    "share of all memory slots that is kept for waiting pods; the first reservation counts at any size",
    "a tenant with many large pods may not hold back the cluster",
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
RESERVATION_RECORD_BYTES = Limit(
    65_536,
    "bytes",
    "annotation of a node's Instaslice object in which the controller records reservations",
    "16 reservations take 30 KiB at most; a longer one is forged, and is written anew",
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
QUEUE_ACCOUNTS = Limit(
    10_000,
    "queues",
    "queues whose usage the controller remembers",
    "some 650 bytes each; of more, the namespaces without a Queue that hold nothing and have used least are forgotten",
)
RETRIED_PODS = Limit(
    64,
    "pods",
    "pods of a queue at its maximum that are planned again when its pods hold less",
    "as many as an eighth of a node's slots; the next ones follow in the next decision",
)
REFUSED_KINDS = Limit(
    256,
    "kinds",
    "kinds of pods of queues with a maximum of which it is kept which nodes refuse them",
    "some 10 KB each with 5,000 nodes; of more, the one that was asked longest ago is asked anew",
)
BACKFILLED_PODS = Limit(
    16,
    "pods",
    "pods with a deadline that one decision tries on reserved slots that they leave in time",
    "each is planned by itself; the others wait like pods without a deadline",
)
GANG_PODS = Limit(
    1_000,
    "pods",
    "pods that are counted for one gang, those that succeeded included",
    "about twice the largest size; pods beyond are planned one by one",
)
GANG_POD_STEPS = Limit(
    1_000,
    "steps",
    "checks for each pod of a gang that is planned, if they are more than those of one step of the planning",
    "twice the cards of the 64 nodes that are asked one by one; about half a second for the largest gang",
)
OPPOSING_TERMS = Limit(
    1_000,
    "terms",
    "terms of other pods' anti-affinity that one slice pod is compared with",
    "a namespace has a few such terms for each application; terms beyond are left to the scheduler",
)
NEIGHBOUR_STEPS = Limit(
    30_000,
    "steps",
    "comparisons for one pod's rules about other pods, each time that they are applied",
    "some 30 ms; a pod of 200 workloads with 50,000 pods takes 1,300; a rule beyond it is left to the scheduler",
)
VOLUME_STEPS = Limit(
    20_000,
    "volumes",
    "free volumes that one decision compares with claims",
    "about 100 ms; claims beyond are taken to fit, and the scheduler decides",
)
EXPLAINED_STEPS = Limit(
    40_000,
    "steps",
    "steps of these searches for all pods of one decision",
    "they may not take longer than the decision; beyond it reasons say that several pods would have to end",
)
REMEMBERED_CONSTRAINTS = Limit(
    4_096,
    "answers",
    "different constraints of pods (selector, affinity, tolerations) whose admitting nodes the controller caches",
    "more kinds of pods than wait at once; the longest unused is forgotten, and computed again when needed",
)
REMEMBERED_SELECTIONS = Limit(
    500_000,
    "entries",
    "the controller's cache for selectors of pods: an entry for each selector, each of its nodes and label sets",
    "200 workloads of 50,000 pods take 76,000, of about 100 bytes; the longest unused is computed again when needed",
)
REMEMBERED_OPPOSITION = Limit(
    4_096,
    "answers",
    "different sets of pods' labels for which the controller caches the terms of anti-affinity that select them",
    "more kinds of pods than wait at once; the longest unused is forgotten, and compared again when needed",
)
REMEMBERED_LABEL_KEYS = Limit(
    10_000,
    "keys",
    "keys of node labels whose last change the controller remembers",
    "clusters have a few hundred; beyond it all keys are forgotten, and every pod is compared again",
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
MOVE_SEARCHES = Limit(
    1,
    "pods",
    "waiting pods for which one decision looks for moves",
    "a search takes as long as a decision; further pods are searched for in the next decisions, 2.5 s apart",
)
MOVE_STEPS = Limit(
    4_000,
    "steps",
    "cards that are looked at, and nodes that are asked about a pod, in one search for moves",
    "7 to 23 ms of CPU time among 40,000 cards; half of the steps look at cards, those of the emptiest nodes first",
)
MOVE_RECORD_BYTES = Limit(
    65_536,
    "bytes",
    "annotation of a node's Instaslice object in which the controller records moves",
    "400 moves, the most in an hour, take 47 KiB; a longer one is forged, and is written anew",
)
COLD_STARTS = Limit(
    10_000,
    "owners",
    "owners of pods whose last start time the controller remembers to price moves",
    "as many as a large cluster has; of more, the one that started longest ago is forgotten",
)
ABSORBED_CHANGES = Limit(
    250,
    "changes",
    "changed nodes and pods that one step of the controller takes in if they are many, and the pods of the last node",
    "some 25 ms; a start and the first use of whole cards change everything, and other work goes on between steps",
)
WRITTEN_NODES = Limit(
    250,
    "nodes",
    "changed nodes that one step of the controller compares with their records, to write what differs",
    "some 10 ms; all nodes change at a start and at the first use of whole cards",
)
COUNTED_WAITING_DEVICES = Limit(
    16,
    "devices",
    "cards and shares of a namespace's oldest waiting pods that count for shares of requests and prices of models",
    "two nodes; gated pods of one tenant hardly change where others go; pods count in full once they hold cards",
)
NAMESPACES_SHOWN = Limit(
    1_000,
    "namespaces",
    "namespaces with a series of their own in the controller's metrics of quota, those with the largest amounts",
    "a tenant may make namespaces; the others are one series, `other`",
)
SILENT_NODES_SHOWN = Limit(
    100,
    "nodes",
    "nodes with a series of their own in the controller's metric of nodes whose agent does not answer",
    "an alert for each of more tells nobody more; the others are one series, `other`",
)
PROFILES_SHOWN = Limit(
    100,
    "profiles",
    "profiles with series of their own in the controller's metrics of slices, the most frequent ones",
    "all models together have some 50; records of nodes may name more, which are one series, `other`",
)
