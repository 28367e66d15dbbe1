"""The one place that knows the version at run time."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("clusterenv")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"
