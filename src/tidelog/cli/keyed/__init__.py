"""``tidelog keyed``: one module per verb; `group` registers them."""
