"""The command line."""

from recollect.cli.app import main

__all__ = ["main"]
