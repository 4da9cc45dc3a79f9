"""The libp2p daemon and the DHT: start, listen, dial, addresses, identity, and the patches of hivemind."""
