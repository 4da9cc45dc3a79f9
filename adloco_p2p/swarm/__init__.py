"""The network room: the only one that imports hivemind.

`p2p` (the daemon, addresses, identity) and `transport` (streams, gossip, rates) import no other room; `discovery` and
`transfer` build on them, `allreduce` on transfer and transport.
"""
