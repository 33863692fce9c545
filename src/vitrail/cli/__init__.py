"""The command `vitrail`: one sub-command, one function, which imports its room when it runs."""

from vitrail.cli.main import COMMANDS as COMMANDS
from vitrail.cli.main import main as main
