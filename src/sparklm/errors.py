"""The exceptions that people are meant to read."""


class UserError(Exception):
    """What the user gave cannot be used: shown as one message without a traceback, exit code 2.

    The message says what is wrong, which value was given, and what to do next.
    """


class TrainingDivergedError(Exception):
    """The loss is no longer a number: shown as one message, exit code 1; the last checkpoint is still good."""
