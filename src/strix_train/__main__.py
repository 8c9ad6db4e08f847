"""`train`, and `python -m strix_train` for torchrun: faults become sentences and exit codes here."""

from __future__ import annotations

import os
import sys

from strix_train.errors import TrainError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    import click

    from strix_train.cli import cli

    try:
        code = cli.main(args=arguments, prog_name="train", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except TrainError as error:
        for problem in () if error.told else error.problems:
            _tell(str(problem))
            if problem.around:
                _tell(f"    {problem.around}")
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"; {context.command_path} --help shows the options" if context else ""
        _tell(error.format_message().rstrip(".") + hint)
        return 2
    except (KeyboardInterrupt, click.Abort):
        _tell("interrupted")
        return 130
    except BrokenPipeError:
        # The reader of a pipe has gone; Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - the last line of defence: a user never reads a traceback
        _tell(_keep_traceback(error))
        return 1


def _tell(text: str) -> None:
    rank = os.environ.get("RANK", "0") if os.environ.get("WORLD_SIZE", "1") != "1" else "0"
    prefix = f"rank {rank}: " if rank != "0" else ""
    for line in text.splitlines():
        print(f"train: {prefix}{line}", file=sys.stderr)


def _keep_traceback(error: Exception) -> str:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="train-", suffix=".log", delete=False) as log:
        traceback.print_exception(error, file=log)
    return f"a fault in train itself: {type(error).__name__}: {error}; the traceback is in {log.name}"


if __name__ == "__main__":
    sys.exit(main())
