"""Typed models of what users write and of what we store: names, the Instaslice object, requests of pods."""
