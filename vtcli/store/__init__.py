"""The files on disk: artifacts and their manifests, records, images, videos, shards, checkpoints.

The room knows the types of ``schema`` and nothing of stages, engines or rollouts.
"""
