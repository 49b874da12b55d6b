"""The cluster as watches show it: pods, nodes, Instaslice objects and volumes, with indexes over them."""
