"""The executor's file system: functions on native paths, and the threads in which they run.

A native path is a `str` in which bytes that are no UTF-8 are surrogate escapes. Functions raise an `OSError`,
or an `RpcError` where the protocol defines the text. No function depends on a connection.
"""
