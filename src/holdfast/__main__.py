"""`python -m holdfast`: the command line, also under torchrun."""

from holdfast.cli.main import main

if __name__ == "__main__":
    main()
