"""``python -m penstock`` is the command line."""

from penstock.cli import script

if __name__ == "__main__":
    script()
