"""vLLM servers: how they are started or found, asked, given weights, and restarted.

``policy`` is the face, over a ``fleet`` of ``remote`` servers, of which each ``child`` is ours. ``serve`` and
``routes`` run in the server. It may import the rest of ``engines.vllm``. It must not know who asks, or for what.
"""
