"""Any family that transformers knows (``AutoModelForImageTextToText``), through its own processor and chat template.

It is exact before it is fast: rows are computed one by one. ``processor.py`` reads images, ``template.py`` the chat
template, ``chat.py`` makes ids of both, ``checks.py`` compares them with the processor and refuses what differs.
It may import the parts that all families share. It must not know the folder of another family.
"""
