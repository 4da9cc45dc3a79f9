"""How the node of this machine is looked at and asked to do things. The only room that knows grpc; `proto/` has the calls."""
