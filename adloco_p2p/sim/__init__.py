"""Virtual time, bad networks and crashing machines, around the very state machines that run in production."""
