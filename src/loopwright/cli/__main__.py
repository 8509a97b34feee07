"""`python -m loopwright.cli` is `loopwright`."""

from loopwright.cli import main

if __name__ == "__main__":
    main()
