"""Writers of demonstrations: the scripted teacher, its plans, and the dialects that it writes in.

It may import the rest of ``data``, and families' call syntax and templates. It must not know an environment: a plan is
text and calls, and ``envs.demonstrate`` plays it.
"""
