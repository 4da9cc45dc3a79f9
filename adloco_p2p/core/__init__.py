"""Decides. Pure: standard library only, `now` and every random draw are arguments, a decision returns a value and a reason.

Three floors: `model` (the vocabulary); `planning`, `ledger` and `averaging` (rules that import only the model); `agreement`
(adds the ledger) and `peer` (adds averaging). The runtime joins them through ports.
"""
