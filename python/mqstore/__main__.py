"""`python -m mqstore`: the same as the command `mqstore`."""

from mqstore.cli import main

if __name__ == "__main__":
    main()
