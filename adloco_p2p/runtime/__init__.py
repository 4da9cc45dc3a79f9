"""The shell around the core: reads the clock, performs effects, and joins the rooms."""
