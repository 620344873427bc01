"""Corpora translated by many machines, a shard at a time.

`plan` cuts the inputs into shards, `records` reads one, `shard` translates one into a part and a
record that it is finished, `job` knows what is finished, `join` joins the parts, and `cluster`
hands shards to workers through Ray Data, in a process that `driver` starts. Only `cluster` imports
Ray.
"""
