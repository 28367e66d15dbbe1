"""Settings for unit tests."""

from hypothesis import settings

# Cores are shared, so the time of a single example says nothing.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
