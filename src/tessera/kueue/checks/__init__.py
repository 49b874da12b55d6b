"""Answers Kueue's admission check "packable": can the slices of a Workload be placed now?"""
