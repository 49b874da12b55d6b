"""Publishes the node's cards on the Node: labels, conditions, and the annotation of offers."""
