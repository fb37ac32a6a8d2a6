"""`python -m moon` runs the `moon` command."""

from moon.cli import main

if __name__ == "__main__":
    main()
