"""Suites of other projects, and tests of ours, on `execclient.integrations`.

Each folder runs in an environment of its own (`make integrations`), since the requirements of one project
conflict with those of another. With `--chaos` the same tests run over a connection that is cut, to a server
that is killed.
"""
