"""Who has what: a registry of hints, for one node or for many (ARCHITECTURE, Registry).

`service.Registry` holds the rules, `memory`, `sqlite` and `postgres` keep the rows, `handlers` speak HTTP.
Knows no TLS, no files of a node and no artifacts; whoever embeds it says who is asking.
"""
