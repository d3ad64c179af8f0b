"""``tidelog log``: one file a verb, and `group`, where all are named."""
