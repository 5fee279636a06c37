"""The command line: one file per group of commands.

It may import every room and all stages, and no room imports it. A command imports heavy libraries when it runs, so that
``vtcli --help`` stays quick. It must not compute what a stage or a library caller would need as well.
"""
