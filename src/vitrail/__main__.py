"""Run the command, as `vitrail` or `python -m vitrail`."""

import os
import sys


def main() -> None:
    """Run the command; Ctrl-C ends it with one line, also while it is being imported."""
    try:
        from vitrail.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("vitrail: interrupted\n")
        sys.stderr.flush()
        os._exit(130)  # half-imported libraries may not survive a usual exit


if __name__ == "__main__":
    main()
