"""What a user can get wrong, said with the value and the remedy; and having been asked to stop."""


class UserError(ValueError):
    """Shown at the command line without a traceback, with exit code 2."""


class OneProcessError(UserError):
    """Went wrong in one of several processes alone, so that it and not the first has to say it."""


class StoppedError(Exception):
    """Work was asked to stop by a signal, and has saved where it stands."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.number = number
