"""Common parts of the families of Qwen-VL: chat, patches and positions, vision attention, vLLM's settings, the files
of a miniature. A family's own folder says what differs, and this room must not know it. Nothing outside
``vtcli.families`` imports this room."""
