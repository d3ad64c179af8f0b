"""``python -m tidelog``: the command, for machines without its script on the path."""

from tidelog.cli.process import run

if __name__ == "__main__":
    run()
