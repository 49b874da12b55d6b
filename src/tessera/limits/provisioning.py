"""Limits on provisioning records, on the reports and metrics made of them, and on `tessera autoscaler`."""

from tessera.limits import Limit

PROVISIONING_RECORD = Limit(
    4_096,
    "characters",
    "a node's annotation with the record of its start, and one line of the records in a ConfigMap",
    "a full record has less than 1 KiB",
)
PROVISIONING_BOOK = Limit(
    512 * 1024,
    "bytes",
    "the ConfigMap of such records; the newest stay",
    "half of a ConfigMap's limit, so that there is room for unreadable lines",
)
RECORD_TEXT = Limit(
    512,
    "characters",
    "a name or an image in a record, as a node or a pod reports it; the rest is cut",
    "a whole image reference fits",
)
METRIC_COMBINATIONS = Limit(
    64,
    "combinations",
    "combinations of pool, strategy and image in provisioning metrics; others count as `other`",
    "each has a histogram for every phase; the names come from others",
)
REPORT_TEXT = Limit(
    16 * 2**20,
    "characters",
    "a file of provisioning records or results",
    "more than 10,000 nodes with a record each",
)
REPORT_RECORD = Limit(
    10_000,
    "values and characters",
    "one record of such a file",
    "a full record has less than a tenth of it",
)
SAMPLE_ROWS = Limit(
    100_000,
    "rows",
    "rows of a file of start times for `advise`, and records that are read of a cluster",
    "years of an autoscaler's work; each is sorted",
)
NODE_GROUPS = Limit(
    50,
    "groups",
    "groups of new nodes in the ConfigMap tessera-node-groups",
    "clusters have a few kinds of GPU nodes; each waiting pod is compared with each group",
)
GROUP_NODES = Limit(
    100,
    "nodes",
    "new nodes of a group that Tessera asks an autoscaler for at a time",
    "an autoscaler's own limits are lower; each is an object in Tessera's namespace",
)
SCALE_UP_PODS = Limit(
    1_000,
    "pods",
    "waiting pods for which Tessera asks for new nodes at a time, the first in order that new nodes could take",
    "as many as one step plans; the others follow when these have their nodes",
)
NODE_PAUSES = Limit(
    10_000,
    "pauses",
    "kinds of requests for which no new node is asked for, as one came and did not help; the oldest pause ends",
    "ten times the pods that count at a time; each may have requests of its own",
)
PACKING_STEPS = Limit(
    40_000,
    "steps",
    "steps of the search for the fewest new nodes with whole cards or shares, for all groups together",
    "about 0.5 s of CPU, in parts of some ms; then the number may be too large, never too small",
)
PACKING_STEPS_OF_GROUP = Limit(
    1_000,
    "steps",
    "the same of one group, where the share of each is less",
    "enough for a few kinds of pods",
)
PASSED_HOSTS = Limit(
    5_000,
    "nodes",
    "present nodes that a placeholder of a group names, so that it is not bound to them; a larger group gets no more",
    "the nodes that Kubernetes supports in a cluster; a placeholder then has some 300 kB, of 1.5 MB that it may have",
)
