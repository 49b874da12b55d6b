"""Checks a bundle by the rules of the Operator Framework: ``python -m bundle.check FOLDER``.

The rules are those that ``operator-sdk bundle validate`` and the scorecard apply, as far as they need no cluster and no
registry (operator-framework/api, ``pkg/validation/internal``; operator-registry, ``pkg/lib/bundle/validate.go``;
operator-sdk, ``internal/scorecard/tests``). They are written anew here, because neither tool comes as a package for
Python or Debian.
"""
