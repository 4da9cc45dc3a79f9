"""The data that must survive a crash: write aside, sync, rename; append, sync, act. No pickle anywhere."""
