"""Run the command line as ``python -m sottovoce``, where the command itself is not on the path."""

from sottovoce.cli import main

if __name__ == "__main__":
    main()
