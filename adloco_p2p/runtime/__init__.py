"""The shell around the core: reads the clock, performs effects, and knows how the rooms fit together."""
