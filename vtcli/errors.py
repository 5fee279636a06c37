"""The errors that a user or a policy is meant to read. Anything else is a defect of ours."""


class VtcliError(Exception):
    """Something the user can fix: printed on one screen without traceback, exit code 2.

    The message has what was given, where, what was expected, and what to do.
    """


class ConfigError(VtcliError):
    """A key, value or combination in the configuration that cannot work."""


class InputError(VtcliError):
    """A file, artifact, row or image that cannot be used, or a place that cannot be written."""


class EngineError(VtcliError):
    """An engine or device that is missing, or did not answer within its limit."""


class ToolError(Exception):
    """A call that cannot be carried out; the message goes to the policy, never to the user."""
