"""The agent behind an OpenAI-compatible endpoint: a client asks, the whole rollout runs here, one answer goes back.

``requests`` (parses what clients send) and ``answers`` (writes responses) are pure: no web server, no engine.
``agent`` makes rollouts with the loop and the worlds of training and evaluation, within bounds. ``history`` keeps the
newest of them. ``app`` and ``response`` are HTTP, ``metrics`` is Prometheus', ``page`` is for a browser. A client's
text is never trusted: it opens no turn and no image, and its pictures go through ``store.images``.

It may import rollout, envs, the store, and the report's viewer and style. It must not know a stage or what trains.
"""
