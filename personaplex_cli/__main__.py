"""`python -m personaplex_cli` is `personaplex`."""

from personaplex_cli.cli import main

if __name__ == "__main__":
    main()
