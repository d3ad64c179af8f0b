"""``python -m tidelog``: the command, where its script is not on the path."""

from tidelog.cli.process import run

if __name__ == "__main__":
    run()
