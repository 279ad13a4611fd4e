"""LeaseHub. Imports nothing: the command line starts through here and must start fast."""

__version__ = "0.1.0"
