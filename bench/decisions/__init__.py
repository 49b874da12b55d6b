"""The cases of ``bench/decide.py``, and how each is measured."""
