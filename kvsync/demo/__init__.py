"""`kvsync demo`: the main job end to end on one machine, with real processes and every check on."""
