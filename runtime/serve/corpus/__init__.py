"""Distributed translation of corpora, shard by shard.

`plan` splits inputs into shards, `records` reads a shard, `shard` translates a shard into a part
and a completion record, `job` manages the state on disk, and `join` concatenates the parts.
`cluster` distributes shards to workers through Ray Data, in a process that `driver` starts. Only
`cluster` imports Ray.
"""
