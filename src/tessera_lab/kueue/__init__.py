"""A stand-in of Kueue: its kinds, its admission and its webhooks, by its documentation; simulated, no Kueue."""
