"""Draws the report of provisioning and the results of experiments: charts in SVG, and a page with them."""
