"""The shell around the core: it reads the clock, performs effects, and joins the other packages."""
