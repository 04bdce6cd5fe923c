"""The executor's file system: plain functions on native paths, and the threads they run in.

A native path is a `str` in which bytes that are no UTF-8 are surrogate escapes. Functions raise
`OSError`, or an `RpcError` where the wire has its own text; none of them knows a connection.
"""
