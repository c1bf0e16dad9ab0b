"""`python -m vitreous` is `vitreous`."""

import sys

from vitreous.cli import main

if __name__ == "__main__":
    sys.exit(main())
