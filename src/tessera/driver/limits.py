"""Limits on the state of drivers, on lists of next kernels, and on answers of registries."""

from tessera.limits import Limit

DRIVER_MEMORY = Limit(
    512 * 1024,
    "characters",
    "a ConfigMap in which the controller keeps driver images or policies",
    "half of a ConfigMap's limit; a longer one is ignored and written again",
)
NEXT_KERNELS = Limit(
    200,
    "kernels",
    "kernels that are expected next, of all systems together; the first count",
    "each is looked for in registries and has a metric",
)
KERNEL_LIST = Limit(
    64 * 1024,
    "characters",
    "one system's list of next kernels; the rest is not read",
    "a line has less than 150 characters, and 200 lines count",
)
RELEASE_DOCUMENT = Limit(
    32 * 2**20,
    "bytes",
    "OpenShift's description of a release",
    "a release's list of images has some hundred kilobytes",
)
APT_INDEX = Limit(
    256 * 2**20,
    "bytes",
    "an index of Ubuntu's packages, unpacked",
    "the largest (noble, universe, amd64) has less than 90 MB",
)
REGISTRY_ANSWER = Limit(
    4 * 2**20,
    "bytes",
    "an answer of a registry",
    "the OCI distribution specification has registries take manifests of 4 MiB",
)
REGISTRY_REDIRECTS = Limit(
    5,
    "redirects",
    "redirects of one request to a registry",
    "a blob's to where it is stored needs one",
)
TOKEN_ANSWER = Limit(
    256 * 1024,
    "bytes",
    "an answer with a registry's token",
    "tokens have some kilobytes",
)
REPOSITORY_TAGS = Limit(
    100_000,
    "tags",
    "tags of one repository",
    "NVIDIA's drivers have several thousand",
)
TAG_PAGES = Limit(
    1_000,
    "pages",
    "pages of a repository's tags",
    "registries give 1,000 tags a page or fewer",
)
REGISTRY_AUTHORITIES = Limit(
    512 * 1024,
    "bytes",
    "a file of certificate authorities for registries",
    "a system's own bundle has about 220 KiB",
)
PULL_SECRET = Limit(
    2**20,
    "bytes",
    "credentials for registries, from a Secret or a file",
    "a Secret holds no more",
)
