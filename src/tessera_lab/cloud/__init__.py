"""A simulated cloud: node groups whose machines take time to come, and the Machine objects that tell of them."""
