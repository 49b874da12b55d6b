"""Every limit on input that others choose: what Tessera reads, keeps or computes.

Tenants, nodes and files are hostile or broken at times. Each text, count and number that comes from them is compared
with a limit *before* any work is done with it. A limit is defined here, with its reason, and nowhere else; the refusal
that a user reads names it, and the tables in ``docs/security.md`` list it. ``tests/docs/test_limits.py`` compares the
page with these modules. Limits of the simulated cluster are in ``tessera_lab.limits``.
"""
