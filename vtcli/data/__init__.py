"""Rows and demonstrations before anything is trained: drawn, imported, exported, or written by a teacher.

``generators`` draw pictures with exact truth, ``importers`` read rows, ``sets`` has a function for each public set,
``exporters`` write them for other trainers, ``teachers`` plan demonstrations. The room may import the store, the schema
and the syntax of calls (``families.calls``). It must not know an environment, an engine or a stage: ``envs`` plays what
is planned here.
"""
