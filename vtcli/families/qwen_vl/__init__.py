"""What the families of Qwen-VL have in common: chat, patches and positions, vision attention, vLLM's settings, the
miniature. A family's own folder says what differs. Nothing outside ``vtcli.families`` imports this room by name."""
