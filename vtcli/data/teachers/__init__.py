"""Writers of demonstrations: the scripted teacher, its plans, and the dialects that it writes in."""
