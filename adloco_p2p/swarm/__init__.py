"""The network room: the only one that imports hivemind."""
