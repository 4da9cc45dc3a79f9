"""Aggregation rules, which turn contributions into one average, and the inner products from which they decide."""
