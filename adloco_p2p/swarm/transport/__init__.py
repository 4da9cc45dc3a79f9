"""Bytes between two peers: framed streams, their pool, gossip envelopes, rate limits, stall detection."""
