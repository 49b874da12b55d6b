"""Limits of the processes themselves: leases, records of decisions, files of an agent, the webhook's port."""

from tessera.limits import Limit

LEASE_DURATION = Limit(
    300,
    "seconds",
    "the time for which a controller waits for the holder of an unchanged Lease, whatever the Lease says",
    "twenty times what Tessera writes; a forged one of 68 years left the cluster without a controller",
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
SCALER_CALLS = Limit(
    1_000,
    "calls",
    "calls and streams of KEDA that are answered at a time",
    "a stream for each ScaledObject of as many services as have signals; a call takes some kB",
)
SCALER_MESSAGE = Limit(
    64 * 2**10,
    "bytes",
    "one message of KEDA",
    "metadata of a trigger are some lines; KEDA sends them with each call",
)
