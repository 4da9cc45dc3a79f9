"""The network, and the only package that imports hivemind.

`p2p` (the daemon, addresses, identity) and `transport` (streams, gossip, rates) import no other part of it; `discovery` and
`transfer` build on them, `allreduce` on `transfer` and `transport`.
"""
