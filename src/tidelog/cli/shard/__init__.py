"""``tidelog shard``: one module per verb; `group` registers them."""
