"""The one error for what a user can get wrong: it names what was wrong, the value, and the remedy."""


class UserError(ValueError):
    """Shown at the command line without a traceback, with exit code 2."""
