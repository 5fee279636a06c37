"""The command line: one file per group of commands. Nothing heavy is imported before a command needs it."""
