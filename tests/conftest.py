"""What holds for every test: random examples are found again, and no example fails for being slow on a shared machine."""

import os

from hypothesis import settings

settings.register_profile("everywhere", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("everywhere")
