"""``tidelog log``: one module per verb; `group` registers them."""
