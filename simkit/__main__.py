"""``python -m simkit``: the command line."""

from simkit.cli.app import main

if __name__ == "__main__":
    main()
