"""The event loop, the device thread, and the ports that they know."""
