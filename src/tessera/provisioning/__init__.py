"""Measures the time to a usable GPU: phases, records, experiments, and recommended timers for autoscalers."""
