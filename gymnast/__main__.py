"""`python -m gymnast` is `gymnast`."""

from gymnast.cli import main

if __name__ == "__main__":
    main()
