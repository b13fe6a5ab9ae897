"""The two ways in which a check ends without a verdict, each with one line for the user."""

from __future__ import annotations


class CheckError(Exception):
    """Base class. ``str(error)`` is one line: what is wrong, then what to do. ``exit_code`` is the process's."""

    exit_code = 2


class InputError(CheckError, ValueError):
    """What was asked for is wrong: exit code 2."""

    exit_code = 2


class EnvironmentUnfit(CheckError, RuntimeError):
    """This machine or this torch cannot do it, or no conclusion was reached: exit code 3."""

    exit_code = 3
