"""`python -m moon` is `moon`."""

from moon.cli import main

if __name__ == "__main__":
    main()
