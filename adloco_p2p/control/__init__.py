"""Inspection and control of the node on this machine. The only room that imports grpc; `proto/` has the calls."""
