"""Pods of one node: admission and one worker for each pod."""
