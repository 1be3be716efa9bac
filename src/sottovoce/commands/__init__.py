"""Define the commands that run nothing: those for one's own table, and those that say what something costs."""
