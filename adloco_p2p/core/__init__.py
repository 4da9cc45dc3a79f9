"""The decisions of a peer. Pure: standard library only, `now` and all random draws are arguments, results carry a reason.

Three floors: `model` (the vocabulary); `planning`, `ledger` and `averaging` (rules that import only the model); `agreement`
(adds the ledger) and `peer` (adds averaging). The runtime joins them through ports.
"""
