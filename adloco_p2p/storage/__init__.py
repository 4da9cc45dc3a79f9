"""The disk: what must survive a crash. Write aside, sync, rename; append, sync, act. No pickle anywhere."""
