"""``python -m simkit``: the command line. Imports `cli` only."""

from simkit.cli import main

if __name__ == "__main__":
    main()
