"""`python -m headway`: the command line, also under torchrun."""

from headway.cli.main import main

if __name__ == "__main__":
    main()
