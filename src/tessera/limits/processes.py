"""Limits of the processes themselves: leases, records of decisions, files of an agent, the webhook's port."""

from tessera.limits import Limit

LEASE_DURATION = Limit(
    300,
    "seconds",
    "the time for which a controller waits for the holder of an unchanged Lease, whatever the Lease says",
    "twenty times what Tessera writes; a forged one of 68 years left the cluster without a controller",
)
NESTING = Limit(
    128,
    "levels",
    "nesting of an object of the API server; deeper parts are left out",
    "no kind of Kubernetes nests half as deep; an object may have 10,000 levels, the decoder takes some 900",
)
REMEMBERED_EVENTS = Limit(
    4_096,
    "events",
    "events that a process remembers to count repeats",
    "client-go remembers as many; the oldest is forgotten, and a repeat of it becomes a new event",
)
RECORDED_DECISIONS = Limit(
    100_000,
    "decisions",
    "decisions of each decider that a process keeps (`--record`)",
    "minutes of a busy cluster; more would fill the process's memory",
)
RECORD_SIZE = Limit(
    256 * 2**20,
    "bytes",
    "records of deciders that `tessera debug` fetches or reads",
    "several times the records of a cluster of 5,000 nodes",
)
INPUT_FILE = Limit(
    64 * 2**20,
    "bytes",
    "a file that a command reads, such as settings or measured times",
    "settings are ConfigMaps of 1 MiB at most; a year of measured times has some megabytes",
)
MARKER_FILE = Limit(
    4_096,
    "characters",
    "a marker file of a driver container; the rest is not read",
    "NVIDIA's have a few lines; the folder belongs to the host",
)
KUBELET_MESSAGE = Limit(
    16 * 2**20,
    "bytes",
    "a message between an agent and kubelet",
    "kubelet's own server of pod resources allows as many",
)
REVIEW_BODY = Limit(
    3 * 2**20,
    "bytes",
    "one AdmissionReview",
    "the API server takes no larger request, and etcd stores half of it",
)
REVIEW_TIME = Limit(
    1_000,
    "ms of CPU time",
    "the review of one pod",
    "the API server waits 5 s, and other pods wait behind this one; the other limits leave a review 200 ms at most",
)
PORT_CONNECTIONS = Limit(
    400,
    "connections",
    "connections that a port of the webhook holds",
    "an API server has 200 changes in flight; each connection takes up to 80 KiB for TLS",
)
PORT_BYTES = Limit(
    16 * 2**20,
    "bytes",
    "requests that the webhook's port holds, headers and bodies of all connections together",
    "five of the largest reviews at once, and hundreds of the usual 20 KiB; each costs up to three times its bytes",
)
PORT_HEADERS = Limit(
    32,
    "headers",
    "headers of a request to the webhook",
    "the API server sends about ten",
)
PORT_HEADER = Limit(
    2_048,
    "bytes",
    "the request line, or one header, of a request to the webhook",
    "those of the API server are far shorter; a header is stored before its request is checked",
)
STATUS_CONNECTIONS = Limit(
    64,
    "connections",
    "connections to the port of health and metrics of a process",
    "kubelet, two Prometheus servers and a few readers of `/usage` or `/queue` need ten",
)
STATUS_BYTES = Limit(
    2 * 2**20,
    "bytes",
    "requests that the port of health and metrics holds, all connections together",
    "64 requests of 32 KiB; Prometheus sends less than 1 KiB",
)
STATUS_HEADER = Limit(
    4_096,
    "bytes",
    "the request line, or one header, of a request to the port of health and metrics",
    "a token of a service account with the longest names has 2,500",
)
STATUS_IDLE_TIME = Limit(
    65_000,
    "ms",
    "the pause between two requests of a connection to the port of health and metrics",
    "longer than the usual interval of scrapes, 15 to 60 s",
)
STATUS_REQUESTS = Limit(
    20,
    "requests per second",
    "requests of one address to the port of health and metrics; those beyond wait a second and get 429",
    "a probe every 10 s, a scrape every 15 s, and people; each answer costs CPU time of the process",
)
PORT_HEADER_TIME = Limit(
    5_000,
    "ms",
    "handshake and headers of the first request of a connection to the webhook",
    "the API server gives up then",
)
PORT_BODY_TIME = Limit(
    5_000,
    "ms",
    "the body of a request to the webhook",
    "the API server gives up then",
)
PORT_IDLE_TIME = Limit(
    120_000,
    "ms",
    "the pause between two requests of a connection to the webhook",
    "longer than API servers pool idle connections (90 s), so that they are the ones to close",
)
AUTHORITIES = Limit(
    16,
    "authorities",
    "certificate authorities in the webhook's CA bundle",
    "two overlap at a rotation; each lost Secret adds one, and the newest stay",
)
STANDSTILL = Limit(
    30_000,
    "ms",
    "time without progress of a process after which its `/healthz` fails",
    "no review and no decision takes a twentieth of it; kubelet then restarts the process",
)
FEED_CHANGES = Limit(
    240,
    "changes",
    "changes that the live page keeps for readers that were away; others get a snapshot",
    "a minute of a busy cluster, at four a second",
)
PAGE_READERS = Limit(
    256,
    "readers",
    "open connections to the feed of the live page",
    "each costs a task and a socket; the next one takes the place of one of the user with most, or is refused with 503",
)
FEED_BYTES = Limit(
    8 * 2**20,
    "bytes",
    "changes that the live page keeps, for readers with the same rights",
    "a change of all of 1,600 cards has 2 MB; older changes are dropped, and their readers get a snapshot",
)
PAGE_VIEWS = Limit(
    32,
    "kinds of rights",
    "different rights of readers of the live page at one time",
    "each costs its own texts of the documents that look different; teams share theirs. The next takes the place of "
    "one of the user with most, or is refused with 503; those who may see everything always have a place",
)
PAGE_REASONS = Limit(
    200,
    "pods",
    "waiting pods for which the live page shows why, those that have waited longest first",
    "each answer takes up to a few milliseconds of CPU; the others are explained on a click",
)
HISTORY_CARDS = Limit(
    4_096,
    "cards",
    "cards whose last hours the live page keeps",
    "each has 72 values of three quantities, 1 kB; cards beyond them are shown without their past",
)
