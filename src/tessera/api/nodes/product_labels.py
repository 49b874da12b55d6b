"""Product names in labels: one spelling for writers of labels and for selectors."""

import re

#: Most characters of a label's value, and of its name after the prefix (Kubernetes, label syntax).
LONGEST = 63
#: Prefix of the labels that count a node's cards of one model; the product follows.
COUNT_LABEL = "tessera.dev/count."
_NAME = COUNT_LABEL.partition("/")[2]


def sanitise(text: str) -> str:
    """Returns a text as a label's value: drops characters besides letters, digits, ``-_.``; a blank becomes one dash.

    Same rules as GPU feature discovery, so that selectors written for it match.
    """
    return "-".join(re.sub(r"[^A-Za-z0-9\-_. ]", "", text).split())


def product_label(product: str, *suffixes: str) -> str:
    """Returns a product's name with its suffixes as a label's value; shortens a too long name at its end."""
    tail = "".join("-" + sanitise(suffix) for suffix in suffixes)
    name = sanitise(product)
    if len(name) + len(tail) > LONGEST:
        name = name[: LONGEST - len(tail)].rstrip("-_.")
    return name + tail


def count_label(product: str) -> str:
    """Returns the label that counts a node's cards of a model; nodes without such a card lack it."""
    return COUNT_LABEL + sanitise(product)[: LONGEST - len(_NAME)].rstrip("-_.")
