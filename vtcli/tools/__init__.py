"""Native tools, one a file: pure functions from pixels and checked arguments to new pixels.

Coordinates are pixels of the view; tools act on the original pixels (``vtcli.schema.ImageRef``). A file of conf/tool
binds one; the card of an environment lists the tools that it offers (conf/env/native.yaml). A tool may import the
schema and the Protocols. It must not know the trajectory, the policy's syntax or another tool."""
