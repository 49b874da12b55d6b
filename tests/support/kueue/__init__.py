"""A stand-in of Kueue for the lab: its kinds, its admission and its webhooks, by its documentation."""
