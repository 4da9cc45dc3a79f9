"""The event loop, the device threads, and their ports."""
