"""The files on disk: artifacts and their manifests, records, images, videos, shards, checkpoints.

It may import ``schema``, ``protocols``, ``errors`` and the configuration's bounds. It must not know a stage, an engine
or a rollout: what it writes is whole or absent, whoever asks.
"""
