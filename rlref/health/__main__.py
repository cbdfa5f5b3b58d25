"""`python -m rlref.health` prints the table of all checks."""

from rlref.health.checks import markdown

if __name__ == "__main__":
    print(markdown())
