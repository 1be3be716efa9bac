"""The same work in other libraries, each contender in a process of its own. `make bench-peers` runs it."""
