"""Bytes between two peers: framed streams and their pool, gossip envelopes, rate limits, stall detection."""
