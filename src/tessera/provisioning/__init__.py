"""The time to a usable GPU: its phases, its records, experiments with it, and what follows for autoscalers' timers."""
