"""How a command ends: whatever goes wrong is one line on stderr and an exit code."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable, Sequence

import click

from cftdiag.cli.options import State
from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.escape import escaped
from cftdiag.quiet import quiet_imports
from cftdiag.report.stream import reader_gone


class Interrupted(click.ClickException):
    """Ctrl-C, caught before click makes two lines of it."""

    exit_code = 3

    def __init__(self, message: str = "interrupted, no conclusion") -> None:
        super().__init__(message)


def tell(message: str) -> None:
    """An error's line on stderr."""
    click.echo(f"error: {escaped(message)}", err=True)


def invoke(
    command: click.Command,
    args: Sequence[str] | None,
    *,
    prog: str,
    mistakes: tuple[type[Exception], ...] = (),
    tell: Callable[[str], None] = tell,
    bugs_in_a_line: bool = True,
    interrupted: type[Interrupted] = Interrupted,
) -> int:
    """Run ``command`` with ``args`` (None: the process's own) and return its exit code: its own result, 2 for
    a user's mistake (``mistakes`` are further types of it), 3 for an unfit machine or a bug. Ctrl-C ends with
    the line and the code of ``interrupted``, wherever it comes.
    Without ``bugs_in_a_line`` a bug is raised: what cannot simply be run again must not hide its traceback.
    """
    quiet_imports()
    state = State(arguments=tuple(sys.argv[1:] if args is None else args))
    wrong: tuple[type[Exception], ...] = (InputError, *mistakes)

    def fail(message: str, code: int) -> int:
        if state.debug:
            traceback.print_exc()
        tell(" ".join(message.split()))
        return code

    try:
        code = command.main(args=args, prog_name=prog, standalone_mode=False, obj=state)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else str(error))
        return 2
    except Interrupted as error:
        return fail(error.message, error.exit_code)
    except click.ClickException as error:
        return fail(_usage_message(error), 2)
    except EnvironmentUnfit as error:
        return fail(str(error), 3)
    except wrong as error:
        if isinstance(error, OSError) and error.filename is not None:
            return fail(_not_written(error), 2)
        return fail(str(error), 2)
    except (KeyboardInterrupt, click.Abort):
        return fail(interrupted().message, interrupted.exit_code)
    except OSError as error:
        if not bugs_in_a_line:
            raise
        return fail(_not_written(error), 3)
    except Exception as error:
        if not bugs_in_a_line:
            raise
        # The last line of defence: a bug of ours is one line too, its traceback on request.
        text = f"internal error: {type(error).__name__}: {error}; run again with --debug for the traceback"
        return fail(text, 3)
    return code if isinstance(code, int) else 0


def _not_written(error: OSError) -> str:
    """A system's refusal; one without a file's name met the process's own output."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror or error}; check the file and its permissions"
    if error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT):
        reader_gone(sys.stdout)
        return f"cannot write the output: {error.strerror}; write it elsewhere"
    return f"{error.strerror or error}; run again with --debug for the traceback"


def _usage_message(error: click.ClickException) -> str:
    text = error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{text} (see: {error.ctx.command_path} --help)"
    return text
