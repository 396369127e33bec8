"""The console script. It imports nothing by itself: Ctrl-C may come before all is loaded."""

import sys


def main() -> None:
    """Run the command line; whoever interrupts it even while it loads gets no traceback."""
    try:
        from spillway.cli.root import app  # noqa: PLC0415

        app(prog_name="spillway")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
