"""A simulated cloud: node groups whose machines take time to start, and their Machine objects."""
