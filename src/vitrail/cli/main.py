"""Which commands there are, and how one is called.

Results go to stdout, progress and errors to stderr; exit codes are 0 (done), 2 (the user's input,
one line), 1 (anything else), and 143 or 130 (a run was stopped by SIGTERM or Ctrl-C, and saved).
"""

from __future__ import annotations

import errno
import functools
import inspect
import io
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

import tyro

from vitrail import __version__
from vitrail.cli.data import data_check, data_fetch, data_list, data_show
from vitrail.cli.demo import demo, doctor
from vitrail.cli.deploy import bench, export, predict, serve
from vitrail.cli.evaluate import calibrate, compare, evaluate, zeroshot
from vitrail.cli.features import choose, clean, cross_validate, embed, fewshot, knn, probe
from vitrail.cli.inspect import inspect as inspect_command
from vitrail.cli.models import describe, models
from vitrail.cli.options import NOT_NEEDED, OTHER_NAMES
from vitrail.cli.reproduction import reproduce
from vitrail.cli.soup import soup
from vitrail.cli.sweeping import MORE as MORE_OF_SWEEPS
from vitrail.cli.sweeping import sweep, sweep_show
from vitrail.cli.train import MORE, CommonFlags, finetune, train
from vitrail.cli.vtab import vtab
from vitrail.cli.weights import convert, weights_list, weights_show
from vitrail.config import InputError, suggest
from vitrail.console import print_line
from vitrail.signals import Stopped
from vitrail.text import printable

COMMANDS: dict[str, Callable[..., None]] = {
    "models": models,
    "describe": describe,
    "convert": convert,
    "weights show": weights_show,
    "weights list": weights_list,
    "data check": data_check,
    "data fetch": data_fetch,
    "data list": data_list,
    "data show": data_show,
    "train": train,
    "finetune": finetune,
    "soup": soup,
    "evaluate": evaluate,
    "calibrate": calibrate,
    "zeroshot": zeroshot,
    "compare": compare,
    "vtab": vtab,
    "inspect": inspect_command,
    "predict": predict,
    "export": export,
    "bench": bench,
    "serve": serve,
    "clean": clean,
    "choose": choose,
    "fewshot": fewshot,
    "probe": probe,
    "cross-validate": cross_validate,
    "knn": knn,
    "embed": embed,
    "demo": demo,
    "doctor": doctor,
    "sweep": sweep,
    "sweep show": sweep_show,
    "reproduce": reproduce,
}

_BAD_PATHS = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
"""Errors that only another name mends."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and end the process with its exit code."""
    # Before torch comes: threads that spin while they wait for each other took 2.5 times as long
    # for training beside other work on two cores, and no less than sleeping ones on idle cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # what a terminal's encoding lacks
    try:
        _run(list(sys.argv[1:] if arguments is None else arguments))
    except InputError as error:
        sys.stderr.write(f"vitrail: {error}\n")
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone, such as `head`
        _give_up_stdout()
        sys.exit(1)
    except OSError as error:
        if error.errno is None:
            raise
        where = f"{printable(str(error.filename))}: " if error.filename else ""
        more = "; raise the limit with ulimit -n" if error.errno == errno.EMFILE else ""
        sys.stderr.write(f"vitrail: {where}{error.strerror}{more}\n")
        if error.errno == errno.ENOSPC:
            _give_up_stdout()
        sys.exit(2 if error.errno in _BAD_PATHS and error.filename else 1)
    except (Stopped, KeyboardInterrupt) as stop:
        sys.stderr.write(f"vitrail: {stop if str(stop) else 'interrupted'}\n")
        sys.exit(128 + getattr(stop, "number", signal.SIGINT))
    except (RuntimeError, MemoryError) as error:
        if (said := _explain(error)) is None:
            raise
        sys.stderr.write(f"vitrail: {said}\n")
        sys.exit(1)


def _keep_caches_together() -> None:
    """Put what libraries keep into our own cache, unless the user has settings of their own."""
    from vitrail.download import cache_folder

    with suppress(RuntimeError):  # where there is no home
        cache = cache_folder()
        if not (Path.home() / ".config" / "matplotlib").exists():
            os.environ.setdefault("MPLCONFIGDIR", str(cache / "matplotlib"))
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "torchinductor"))


def _run(given: list[str]) -> None:
    """Run what was given; all of its output is written then, or why it could not be is raised."""
    try:
        match given:
            case []:
                print_line(f"{_overview()}\n")
                sys.stdout.flush()  # to read while torch, which knows the device, is imported
                print_line(_installed())
            case ["-h" | "--help"]:
                print_line(_overview())
            case ["-V" | "--version"]:
                print_line(f"vitrail {__version__}")
            case [room, name, *rest] if f"{room} {name}" in COMMANDS:
                command = _parse(f"{room} {name}", rest)
                _keep_caches_together()
                command()
            case [name, *rest] if name in COMMANDS:
                command = _parse(name, rest)
                _keep_caches_together()
                command()
            case [name, *_]:
                raise InputError(f"{_unknown(name)} (see 'vitrail --help')")
    finally:
        sys.stdout.flush()


def _unknown(name: str) -> str:
    """Say which command an unknown word may have meant."""
    if inside := [command for command in COMMANDS if command.startswith(f"{name} ")]:
        return f"{name!r} is the first word of: {', '.join(inside)}"
    hint = suggest(name, COMMANDS) or f"; there are: {', '.join(COMMANDS)}"
    return f"unknown command {name!r}{hint}"


def _give_up_stdout() -> None:
    """Let what could not be written go, or Python would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(error: RuntimeError | MemoryError) -> str | None:
    """Say in one line what happened, where that says it all without the traceback."""
    from vitrail.data.loader import WorkerError
    from vitrail.training.loop import DivergedError
    from vitrail.training.memory import is_out_of_memory

    if isinstance(error, DivergedError | WorkerError):
        return str(error)
    if is_out_of_memory(error):
        said = printable(str(error).partition("\n")[0])
        return f"out of memory; a smaller --batch, --image or model needs less ({said})"
    return None


def _overview() -> str:
    """Write the overview: one line per command."""
    width = max(map(len, COMMANDS))
    lines = [(command.__doc__ or "").partition("\n")[0] for command in COMMANDS.values()]
    listed = [f"  {name:{width}}  {line}" for name, line in zip(COMMANDS, lines, strict=True)]
    return "\n".join(
        [
            "usage: vitrail COMMAND …",
            "",
            "The Vision Transformer of 'An Image is Worth 16x16 Words', to train and to use.",
            "",
            *listed,
            "",
            "'vitrail COMMAND --help' shows a command's options and an example.",
            "'vitrail --version' shows the version.",
        ]
    )


def _installed() -> str:
    """Say in a few lines what is here."""
    from vitrail.deploy.installation import doctor

    return doctor().brief()


def _parse(name: str, arguments: list[str]) -> Callable[[], None]:
    """Read a command's arguments to a call that is still to be made."""
    command, more = COMMANDS[name], {}
    arguments = [_plain_name(argument) for argument in arguments]
    for flag, value in itertools.pairwise([*arguments, None]):
        if flag == "--out=" or (flag == "--out" and value == ""):
            raise InputError("--out is empty; name a folder, or . for this one")
    # What the source says of an option on several lines is one text; tyro would break it there.
    command.__doc__ = re.sub(r"\n {8}", " ", inspect.cleandoc(command.__doc__ or ""))
    open_ended = "settings" in inspect.signature(command).parameters
    if open_ended:
        arguments, more["settings"] = _split_settings(command, arguments)

    @functools.wraps(command)
    def bind(*values: Any, **options: Any) -> Callable[[], None]:
        return functools.partial(command, *values, **{**options, **more})

    prog, errors = f"vitrail {name}", io.StringIO()
    try:
        with redirect_stderr(errors):
            return tyro.cli(bind, prog=prog, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    except SystemExit as stop:
        if stop.code:
            said = _other_name(command, arguments) or _one_line(errors.getvalue())
            raise InputError(f"{said} (see '{prog} --help')") from None
        if open_ended:
            print_line(MORE_OF_SWEEPS if command is sweep else MORE)
        raise


def _plain_name(argument: str) -> str:
    """Take a dash for the beginning of a name, not of an option, where something is called so."""
    dashed = re.match("-[^-]", argument) and argument != "-h"
    return f"./{argument}" if dashed and os.path.lexists(argument.partition(",")[0]) else argument


def _split_settings(
    command: Callable[..., None], arguments: list[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Take out of a command's arguments those that are settings: --path TEXT, or --path=TEXT.

    A flag without a text switches on.
    """
    parameters = inspect.signature(command).parameters
    own = {"help", *parameters}
    own |= set(inspect.signature(CommonFlags).parameters) if "flags" in parameters else set()
    own -= {"flags", "settings"}
    left: list[str] = []
    settings: list[tuple[str, str]] = []
    waiting = list(reversed(arguments))
    while waiting:
        argument = waiting.pop()
        flag, equals, text = argument.partition("=")
        path = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or path in own:
            left.append(argument)
            continue
        if path in NOT_NEEDED:
            raise InputError(f"unknown option {flag}; {NOT_NEEDED[path]}")
        if path in OTHER_NAMES:
            raise InputError(f"unknown option {flag}; did you mean {OTHER_NAMES[path]}?")
        if not equals:
            text = "true" if not waiting or waiting[-1].startswith("--") else waiting.pop()
        settings.append((flag.removeprefix("--"), text))
    return left, settings


def _other_name(command: Callable[..., None], arguments: list[str]) -> str | None:
    """Say which of a command's flags has the name of a peer's flag among the arguments."""
    own = inspect.signature(command).parameters
    for flag in (argument.partition("=")[0] for argument in arguments):
        meant = OTHER_NAMES.get(flag.removeprefix("--").replace("-", "_"), "")
        if flag.startswith("--") and meant.removeprefix("--") in own:
            return f"unknown option {flag}; did you mean {meant}?"
    return None


def _one_line(box: str) -> str:
    """Flatten the parser's framed message: its first section, and what the user may have meant."""
    lines = [line.strip("│ ") for line in box.splitlines() if line[:1] not in "╭╰"]
    rules = [not line.strip("─-") and bool(line) for line in lines]
    if not box.startswith("╭"):  # without the characters of a frame, its title is a line
        lines, rules = lines[2:], rules[2:]
    first = " ".join(lines[: rules.index(True)] if True in rules else lines)
    whole = " ".join(" ".join(lines).split())
    if said := _reworded(whole):
        return said
    meant = lines.index("Perhaps you meant:") + 1 if "Perhaps you meant:" in lines else None
    return first if meant is None else f"{first}; perhaps you meant {lines[meant]}"


def _reworded(said: str) -> str | None:
    """Say in our words what the parser says of a value; it lists choices as Python does."""
    wrong = re.search(r"Error parsing (--\S+): .*?(INT|FLOAT).*? from \['(.*?)'\]", said)
    wrong = wrong or re.search(r"Error parsing (--\S+): .*?(int|float)\b.*?: '(.*?)'", said)
    if wrong:
        kind = "a whole number" if wrong[2].lower() == "int" else "a number"
        return f"{wrong[1]}: expected {kind}, got '{wrong[3]}'"
    if wrong := re.search(r"Error parsing (--\S+): .*? for arguments: \[(.*?)\]", said):
        return f"{wrong[1]}: expected numbers, got {wrong[2]}"
    pattern = r"invalid choice '(.*)' for argument '(--\S+)'. Expected one of \((.*?)\)"
    if wrong := re.search(pattern, said):
        choices = sorted(set(re.findall(r"'(.*?)'", wrong[3])) - {"None"})  # in any order there
        return f"{wrong[2]}: expected one of {', '.join(choices)}, got '{wrong[1]}'"
    if wrong := re.search(r"Missing value for argument '(--\S+)'", said):
        return f"{wrong[1]}: expected a value"
    return None
