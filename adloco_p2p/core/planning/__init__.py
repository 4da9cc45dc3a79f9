"""From a plan and a set of reports to the next plan. Pure functions; begin at `round_plan.py`."""
