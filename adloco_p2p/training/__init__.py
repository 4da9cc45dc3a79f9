"""The device room: models, inner steps, instances. Synchronous; called from one thread per device."""
