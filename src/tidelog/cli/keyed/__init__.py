"""``tidelog keyed``: one file a verb."""
