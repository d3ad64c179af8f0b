"""Durable state machines: dense diffs in consensus, the whole state as a rollup now and then."""
