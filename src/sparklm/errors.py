"""The exceptions that people are meant to read: one message, no traceback."""


class UserError(Exception):
    """What the user gave cannot be used: exit code 2.

    The message says what is wrong, which value was given, and what to do next.
    """


class JobError(Exception):
    """The job cannot go on, though the input was right: exit code 1."""


class TrainingDivergedError(JobError):
    """The loss or a weight is no longer a number; the last checkpoint is still good."""


class LostFolderError(JobError):
    """Another process owns the folder now: this one was silent for too long, and must not write there any more."""


class StoreAwayError(JobError):
    """Storage does not answer, and was waited for; what was saved is still good."""
