"""``python -m cftdiag``."""

from cftdiag.cli import main

if __name__ == "__main__":
    main()
